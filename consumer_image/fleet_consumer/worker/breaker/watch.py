"""A retry worker's view of the main workers' breakers.

A separate thread requests the main group's commits from the coordinator about once a second. The thread has its own
connection. The consumer's connections belong to another group, and their heartbeats must not wait for these requests.
The thread stores the times until which the breakers count as open or closed. The decisions are made by the consume
loop, which reads these times.

Decision: docs/decisions/0014-waiting-and-stopping.md.
"""

import logging
import threading
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.contract.breaker_state import (
    CLOSED_LIMIT_S,
    OPEN_LIMIT_S,
    Breakers,
    read_breaker_state,
    read_closed_breaker_state,
)
from fleet_consumer.net import ConnectionSettings, NetError, NetworkClient
from fleet_consumer.net.addresses import BrokerAddress
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode, KafkaError
from fleet_consumer.wire.offsets import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")

POLL_INTERVAL_S: Final = 1.0
ERROR_INTERVAL_S: Final = 5.0
"""Seconds until the next request after an error that is not retriable. After a response or a retriable error, the
interval is `POLL_INTERVAL_S`."""

ANSWER_TIMEOUT_S: Final = 3.0
"""Timeout of each request in seconds, and therefore the longest time that `close` waits for a silent broker."""


class BreakerStates:
    """The breaker states in the metadata of commits. Pure: times are wall-clock seconds.

    Each state contains its expiry time. It also expires a fixed time after it was first observed, because the clock of
    the worker that wrote it may be wrong.
    """

    def __init__(self) -> None:
        self._seen: dict[TopicPartition, tuple[bool, int, float]] = {}

    def combine(self, metadata: dict[TopicPartition, str], now: float) -> Breakers:
        """Combine the states in `metadata` (the metadata of all commits of the main group) into one state.

        The breakers count as open if more partitions report open than closed. If one worker fails while the others
        succeed, the cause is this worker and not an outage. Partitions without a state do not count.
        """
        before, self._seen = self._seen, {}
        open_until: list[float] = []
        closed_until: list[float] = []
        for partition, text in metadata.items():
            opened, closed = read_breaker_state(text), read_closed_breaker_state(text)
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
    """The thread that reads the breaker states. The constructor does not start the thread. After `follow(False)`, the
    thread closes its connection and waits.

    States apply until they expire, so an unreachable broker does not change the state of a breaker.
    """

    def __init__(self, connection: ConnectionSettings, group_id: str, clock: Clock) -> None:
        self._connection = connection
        self._group_id = group_id
        self._clock = clock
        self._states = BreakerStates()
        self._breakers = Breakers()
        self._wanted = False
        self._closed = False
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None
        self._logged: str | None = None

    def start(self) -> None:
        """Start the thread. It reads no states before `follow(True)`."""
        self._thread = threading.Thread(target=self._run, name="breaker-watch", daemon=True)
        self._thread.start()

    def follow(self, wanted: bool) -> None:
        """Begin to read states if `wanted`, otherwise stop. Any thread may call this; a call without a change is
        cheap."""
        if wanted != self._wanted:
            self._wanted = wanted
            self._changed.set()

    def breakers(self) -> Breakers:
        """Return the last observed state of the main workers' breakers; no state after `follow(False)`. Any thread."""
        return self._breakers if self._wanted else Breakers()

    def close(self) -> None:
        """End the thread and wait for it, at most a few seconds. Idempotent."""
        self._closed = True
        self._changed.set()
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
            except Exception:  # without this thread, retries would continue during every outage
                LOG.exception("unexpected error in the watch of the main workers' breakers; restarting it")
                self._rest(ERROR_INTERVAL_S)

    def _watch(self) -> None:
        client = NetworkClient(self._connection, self._clock)
        coordinator: BrokerAddress | None = None
        try:
            while self._wanted and not self._closed:
                interval_s = POLL_INTERVAL_S
                try:
                    if coordinator is None:
                        found = client.find_coordinators([self._group_id], timeout_s=ANSWER_TIMEOUT_S)[self._group_id]
                        if isinstance(found, KafkaError):
                            raise found
                        coordinator = found.address
                    self._read_states(client, coordinator)
                    self._logged = None
                except (NetError, KafkaError) as error:
                    self._log(error)
                    coordinator = None
                    interval_s = POLL_INTERVAL_S if error.retriable else ERROR_INTERVAL_S
                self._rest(interval_s)
        finally:
            client.close()

    def _read_states(self, client: NetworkClient, coordinator: BrokerAddress) -> None:
        request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=self._group_id, topics=None),))
        answer = client.call(coordinator, request, timeout_s=ANSWER_TIMEOUT_S)
        now = self._clock.wall()
        breakers = self._states.combine(self._metadata(answer), now)
        if self._breakers.open_until <= now < breakers.open_until:
            until = round(breakers.open_until, 3)
            LOG.info("the main workers' breakers are open", extra=fields(group=self._group_id, until=until))
        self._breakers = breakers

    def _metadata(self, answer: OffsetFetchResponse) -> dict[TopicPartition, str]:
        """Return the metadata of every commit. Raises KafkaError for the first error in the response."""
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
        """Log the error if the previous error had another class. The consume loop logs unreachable brokers as well."""
        kind = type(error).__name__
        if kind != self._logged:
            self._logged = kind
            LOG.warning("the main workers' breakers cannot be read", extra=fields(reason=kind, error=str(error)))

    def _rest(self, seconds: float | None) -> None:
        """Wait for `follow` or `close`, at most `seconds`. Clearing the event is safe, because the caller checks
        `_wanted` and `_closed` before it waits again."""
        self._changed.wait(seconds)
        self._changed.clear()
