"""Signal handlers that raise in the middle of a poll, as a program's alarm or Ctrl-C does, lose nothing.

Signals come to the main thread, so these tests do not run next to others.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from fleet_consumer import Consumer, Run, TopicPartition
from tests.broker.members import committed, create_topic, produce, settings, unique
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

PARTITIONS = 3
EACH = 20_000
INTERRUPTIONS = 15
ALARM_S = 0.001
"""About as long as a poll that reads 500 records: alarms hit every point of it."""


class Ended(BaseException):
    """Raised by a handler to end the program, as KeyboardInterrupt is."""


class TimeIsUp(Exception):
    """An ordinary exception, as time limits raise it."""


@pytest.fixture(params=[Ended, TimeIsUp])
def raised(request: pytest.FixtureRequest) -> Iterator[type[BaseException]]:
    """The exception of SIGALRM's handler."""
    kind: type[BaseException] = request.param

    def handler(number: int, frame: object) -> None:
        raise kind

    before = signal.signal(signal.SIGALRM, handler)
    yield kind
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


# Where it interrupts a destructor, the interpreter itself drops the handler's exception.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_signal_handler_that_raises_within_polls_loses_nothing(
    broker: KafkaBroker, raised: type[BaseException]
) -> None:
    """Every record comes, in order, and no position or commit is ahead of the delivered ones."""
    topic, group = create_topic(broker.bootstrap, PARTITIONS), unique("group")
    produce(broker.bootstrap, topic, PARTITIONS, EACH)
    reached = {TopicPartition(topic, number): 0 for number in range(PARTITIONS)}
    wrong: list[str] = []
    interrupted = 0
    flowing = False
    with Consumer(settings(broker.bootstrap, group)) as consumer:
        consumer.subscribe([topic])
        eventually(lambda: (consumer.poll(0.1, max_records=0), consumer.assignment())[1], what="a share")

        def all_read() -> bool:
            nonlocal interrupted, flowing
            runs: list[Run] = []
            try:
                signal.setitimer(signal.ITIMER_REAL, ALARM_S if flowing and interrupted < INTERRUPTIONS else 0)
                runs = consumer.poll(0.2).runs
                signal.setitimer(signal.ITIMER_REAL, 0)
            except (raised, RuntimeError) as error:  # also between the poll and the line behind it, with records there
                # Python's own Event.wait, interrupted while it takes its lock back, hides the exception behind another.
                if not isinstance(error, raised) and not isinstance(error.__context__, raised):
                    raise
                interrupted += 1
            for run in runs:
                if run.records[0].offset != reached[run.topic_partition]:
                    wrong.append(f"{run.topic_partition}: {run.records[0].offset} after {reached[run.topic_partition]}")
                reached[run.topic_partition] = run.next_offset
            flowing = bool(runs)
            positions = {part: consumer.position(part) for part in reached}
            wrong.extend(f"{part} is at {at}" for part, at in positions.items() if at not in (None, reached[part]))
            if set(reached.values()) != {EACH}:
                return False
            if interrupted >= INTERRUPTIONS:
                return True
            # Too few alarms met a poll to say anything: once more from the beginning.
            for part in reached:
                consumer.seek(part, 0)
                reached[part] = 0
            return False

        eventually(all_read, poll_s=0, what="all records")
        consumer.commit()
    assert not wrong
    assert committed(broker.bootstrap, group, topic, PARTITIONS) == dict.fromkeys(range(PARTITIONS), EACH)
