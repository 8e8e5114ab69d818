"""A retry worker's view of the main workers' breakers.

A thread of its own asks the coordinator for the main group's commits about once a second, over its own connection:
the consumer's connections carry heartbeats that must not wait behind this, and belong to another group. What it
learns are points in time that the consume loop reads whenever it likes. It never decides anything itself.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.contract.breaker_mark import CLOSED_LIMIT_S, OPEN_LIMIT_S, Breakers, read_closed_mark, read_mark
from fleet_consumer.net import ConnectionSettings, NetError, NetworkClient
from fleet_consumer.net.addresses import BrokerAddress
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode, KafkaError
from fleet_consumer.wire.offsets import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")

LOOK_INTERVAL_S: Final = 1.0
ERROR_INTERVAL_S: Final = 5.0
"""Waits after an answer or a retriable error, and after any other error."""

ANSWER_TIMEOUT_S: Final = 3.0
"""Timeout of each request; also the longest that `close` waits when a broker is silent."""


class Marks:
    """The marks in the commits' metadata. Pure: times are wall-clock seconds.

    A mark counts from when it was first seen, for no longer than its limit, however far ahead it points.
    """

    def __init__(self) -> None:
        self._seen: dict[TopicPartition, tuple[bool, int, float]] = {}

    def take(self, metadata: dict[TopicPartition, str], now: float) -> Breakers:
        """All commits of the group as they are now.

        The breakers are open where more partitions are marked so than closed: a single worker that cannot reach what
        the others can says more of itself than of what records depend on. Partitions without a mark say nothing.
        """
        before, self._seen = self._seen, {}
        open_until: list[float] = []
        closed_until: list[float] = []
        for partition, text in metadata.items():
            opened, closed = read_mark(text), read_closed_mark(text)
            until_ms = closed if opened is None else opened
            if until_ms is None:
                continue
            known = before.get(partition)
            first = known[2] if known is not None and known[:2] == (opened is not None, until_ms) else now
            self._seen[partition] = (opened is not None, until_ms, first)
            until = min(until_ms / 1000, first + (CLOSED_LIMIT_S if opened is None else OPEN_LIMIT_S))
            if until > now:
                (closed_until if opened is None else open_until).append(until)
        if len(open_until) > len(closed_until):
            return Breakers(open_until=max(open_until))
        return Breakers(closed_until=max(closed_until, default=0.0))


class BreakerWatch:
    """The thread. Making one starts nothing; `follow(False)` lets it rest without a connection.

    What was learnt holds by itself until it ends, so that a broker that is away neither opens nor closes anything.
    """

    def __init__(self, connection: ConnectionSettings, group_id: str, clock: Clock) -> None:
        self._connection = connection
        self._group_id = group_id
        self._clock = clock
        self._marks = Marks()
        self._breakers = Breakers()
        self._wanted = False
        self._closed = False
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._logged: str | None = None

    def start(self) -> None:
        """Begin to watch once `follow(True)` was said."""
        self._thread = threading.Thread(target=self._run, name="breaker-watch", daemon=True)
        self._thread.start()

    def follow(self, wanted: bool) -> None:
        """Watch while the group's budget is one that pauses. Any thread; costs nothing without a change."""
        if wanted != self._wanted:
            self._wanted = wanted
            self._news.set()

    def breakers(self) -> Breakers:
        """The main workers' breakers as last seen. Any thread."""
        return self._breakers if self._wanted else Breakers()

    def close(self) -> None:
        """End the thread, within a few seconds. Idempotent."""
        self._closed = True
        self._news.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._closed:
            try:
                if self._wanted:
                    self._watch()
                else:
                    self._rest(None)
            except Exception:  # the thread's end would go unnoticed, and retries would go on through every outage
                LOG.exception("unexpected error in the watch of the main workers' breakers; it is restarted")
                self._rest(ERROR_INTERVAL_S)

    def _watch(self) -> None:
        """Ask while the breakers are wanted."""
        client = NetworkClient(self._connection, self._clock)
        coordinator: BrokerAddress | None = None
        try:
            while self._wanted and not self._closed:
                interval_s = LOOK_INTERVAL_S
                try:
                    if coordinator is None:
                        found = client.find_coordinators([self._group_id], timeout_s=ANSWER_TIMEOUT_S)[self._group_id]
                        if isinstance(found, KafkaError):
                            raise found
                        coordinator = found.address
                    self._look(client, coordinator)
                    self._logged = None
                except (NetError, KafkaError) as error:
                    self._log(error)
                    coordinator = None
                    interval_s = LOOK_INTERVAL_S if error.retriable else ERROR_INTERVAL_S
                self._rest(interval_s)
        finally:
            client.close()

    def _look(self, client: NetworkClient, coordinator: BrokerAddress) -> None:
        request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=self._group_id, topics=None),))
        answer = client.call(coordinator, request, timeout_s=ANSWER_TIMEOUT_S)
        now = self._clock.wall()
        breakers = self._marks.take(self._metadata(answer), now)
        if self._breakers.open_until <= now < breakers.open_until:
            until = round(breakers.open_until, 3)
            LOG.info("the main workers' breakers are open", extra=fields(group=self._group_id, until=until))
        self._breakers = breakers

    def _metadata(self, answer: OffsetFetchResponse) -> dict[TopicPartition, str]:
        """Every commit's metadata. Raises KafkaError for the first thing that the coordinator refuses."""
        metadata: dict[TopicPartition, str] = {}
        subject = f"committed offsets of group {self._group_id!r}"
        for group in answer.groups:
            if group.error_code != ErrorCode.NONE:
                raise KafkaError(group.error_code, subject)
            for topic in group.topics:
                for part in topic.partitions:
                    if part.error_code != ErrorCode.NONE:
                        raise KafkaError(part.error_code, subject)
                    metadata[TopicPartition(topic.name, part.partition_index)] = part.metadata or ""
        return metadata

    def _log(self, error: NetError | KafkaError) -> None:
        """Log an error, once for each kind: it may last, and the consume loop logs unreachable brokers too."""
        kind = type(error).__name__
        if kind != self._logged:
            self._logged = kind
            LOG.warning("the main workers' breakers cannot be read", extra=fields(reason=kind, error=str(error)))

    def _rest(self, seconds: float | None) -> None:
        """Wait until there is news or the time is over. The caller looks at what is wanted before it waits again, so
        the event may be cleared here."""
        self._news.wait(seconds)
        self._news.clear()
