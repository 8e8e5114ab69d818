"""Client of a cluster; maintains the connections to the cluster's brokers.

Decision: docs/decisions/0002-network-client.md.
"""

import contextlib
import heapq
import random
import selectors
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar

from fleet_consumer.clock import Clock, SystemClock
from fleet_consumer.net.addresses import BrokerAddress, Lookups
from fleet_consumer.net.connection import IoLoop
from fleet_consumer.net.errors import (
    AllBrokersUnreachable,
    AnotherCluster,
    AuthenticationFailed,
    Disconnected,
    MalformedResponse,
    NetError,
    NoBrokersListed,
    RequestTimedOut,
    UnsupportedByBroker,
    listed,
)
from fleet_consumer.net.lane import BrokerLane, ReconnectPause
from fleet_consumer.net.session import Call
from fleet_consumer.net.settings import ConnectionSettings
from fleet_consumer.wire.errors import ErrorCode, KafkaError
from fleet_consumer.wire.groups import GROUP_KEY_TYPE, FindCoordinatorRequest
from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.topics import MetadataRequest, MetadataRequestTopic, MetadataResponse

ResponseT = TypeVar("ResponseT", bound=Response)

MAIN_LANE: Final = "main"

GROUPS_PER_LOOKUP: Final = 1_000
"""Maximum number of groups in one FindCoordinator request. The limit keeps messages small."""

BROKERS_MAX: Final = 1_000
"""Maximum number of brokers of a cluster: several times the size of the largest known clusters."""

CONNECTIONS_MAX: Final = 128
"""Maximum number of connections of a client. A broker may list many other brokers, and each connection needs a file
descriptor and memory for TLS. At the limit, an unused connection is closed before another is opened."""

ROUND_PAUSE_SECONDS: Final = 0.1
"""Pause between two rounds over all brokers. Without it, brokers that answer with an error would be asked again
immediately, because only a lost connection causes a reconnect pause."""

_SYSTEM_CLOCK: Final = SystemClock()


class Coordinator(NamedTuple):
    node_id: int
    address: BrokerAddress


class NetworkClient:
    """A client of one cluster's brokers. One thread uses it; any thread may call `wakeup`.

    The constructor does no I/O; connections are opened when a call needs them. Each lane has its own connection to a
    broker, so its requests do not wait behind the requests of other lanes. If a sent request times out, its connection
    is closed, and other calls on this connection end with Disconnected.
    """

    def __init__(self, settings: ConnectionSettings, clock: Clock = _SYSTEM_CLOCK) -> None:
        self._settings = settings
        self._clock = clock
        self._chance = random.Random()
        self._bootstrap = settings.bootstrap_addresses
        self._brokers: dict[int, BrokerAddress] = {}
        # None outside of `one_cluster`. Within this context, the id of the accepted cluster, or an empty set until the
        # id is known.
        self._cluster_ids: set[str | None] | None = None
        self._selector = selectors.DefaultSelector()
        self._lookups = Lookups(self.wakeup)
        self._lanes: dict[tuple[BrokerAddress, str], BrokerLane] = {}
        self._pauses: dict[BrokerAddress, ReconnectPause] = {}
        self._deadlines: list[tuple[float, int, Call[Any], BrokerLane]] = []
        self._sequence = count()
        self._closed = False
        # `_ended`: a call has ended since the last poll returned. `_woken`: `wakeup` was called since the last poll
        # returned. Only the owning thread uses both.
        self._ended = False
        self._woken = False
        # Any thread may write a byte to wake the owning thread, which reads the byte. If the socket is full, the owning
        # thread was already woken.
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)

    @property
    def brokers(self) -> Mapping[int, BrokerAddress]:
        """The brokers of the last `metadata` response, keyed by node id; empty before the first response."""
        return self._brokers

    def send(
        self,
        address: BrokerAddress,
        request: Request[ResponseT],
        *,
        lane: str = MAIN_LANE,
        timeout_s: float | None = None,
    ) -> Call[ResponseT]:
        """Queue a request, which `poll` sends. Never blocks; every failure is reported through the call. `timeout_s`
        limits the time from now to the response; the default is the settings' request timeout."""
        patience_s = self._settings.request_timeout_ms / 1000 if timeout_s is None else timeout_s
        call: Call[ResponseT] = Call(
            address, request, timeout_s=patience_s, deadline=self._clock.monotonic() + patience_s
        )
        if self._closed:
            self._ended = True
            call.fail(Disconnected("the client is closed", address=address, reason="ClientClosed"))
            return call
        key = (address, lane)
        if key not in self._lanes:
            self._lanes[key] = BrokerLane(
                address,
                self._settings,
                loop=IoLoop(self._selector, self.wakeup, self._lookups),
                pause=self._pauses.setdefault(address, ReconnectPause(self._settings, self._chance)),
                chance=self._chance,
            )
        self._lanes[key].add(call)
        heapq.heappush(self._deadlines, (call.deadline, next(self._sequence), call, self._lanes[key]))
        return call

    def disconnect(self, address: BrokerAddress, *, lane: str = MAIN_LANE) -> None:
        """Close a lane's connection; its calls end with Disconnected, and the next call opens a new one."""
        given_up = self._lanes.pop((address, lane), None)
        if given_up is not None:
            given_up.shut(
                Disconnected(
                    f"connection to broker {address} closed, because the broker did not answer", address=address
                )
            )
            self._ended = True

    def poll(self, timeout_s: float) -> None:
        """Do I/O and expire calls until a call ends, `wakeup` is called, or `timeout_s` seconds have passed."""
        deadline = self._clock.monotonic() + timeout_s
        while True:
            self._poll_once(0.0 if self._ended or self._woken else deadline - self._clock.monotonic())
            if self._ended or self._woken or self._closed or self._clock.monotonic() >= deadline:
                self._ended = self._woken = False
                return

    def wakeup(self) -> None:
        """Make the current or the next `poll` return without waiting. Any thread may call this method, even after
        `close`."""
        with contextlib.suppress(OSError):  # full: already woken; closed: nothing to wake
            self._wake_writer.send(b"\0")

    def call(self, address: BrokerAddress | None, request: Request[ResponseT], *, timeout_s: float) -> ResponseT:
        """Send a request and wait for the response. Raises NetError.

        If `address` is None, the brokers of the last Metadata response are tried one after the other. Bootstrap
        addresses are tried only if no broker is known, because they may belong to another cluster. A `wakeup` during
        this call does not end the call; it ends the next `poll`.
        """
        if address is None:
            return self._call_any(request, timeout_s)
        call = self.send(address, request, timeout_s=timeout_s)
        while not call.done:
            self._poll_once(call.deadline - self._clock.monotonic())
        return call.response

    def metadata(self, topics: Sequence[str] | None = (), *, timeout_s: float) -> MetadataResponse:
        """Request brokers and topics (None: all topics) from any broker, and store the brokers. Raises NetError.

        Bootstrap addresses are tried last, so that a cluster is found even after all its brokers have changed their
        addresses. Never creates topics. A topic that cannot be described has an error code in the response.
        """
        wanted = None if topics is None else tuple(MetadataRequestTopic(name=name) for name in topics)
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        response = self._call_any(request, timeout_s, also=self._bootstrap, check=self._check)
        if self._cluster_ids is not None:
            self._cluster_ids.add(response.cluster_id)
        # A broker that has just started may list no brokers. Then the previous list is kept.
        if response.brokers:
            self._brokers = {broker.node_id: BrokerAddress(broker.host, broker.port) for broker in response.brokers}
            in_use = {address for address, _ in self._lanes}
            for address in self._pauses.keys() - {*self._brokers.values(), *self._bootstrap} - in_use:
                del self._pauses[address]
        return response

    @contextlib.contextmanager
    def one_cluster(self, cluster_id: str | None = None) -> Iterator[None]:
        """Within this context, accept Metadata only from one cluster: `cluster_id` or, if `cluster_id` is None, the
        cluster of the first response.

        Brokers of another cluster count as failed (AnotherCluster), and so do brokers that list no brokers yet
        (NoBrokersListed). A caller that passes `cluster_id` must request Metadata before it sends other requests. Those
        go to the brokers of the last Metadata response, which may otherwise belong to another cluster.
        """
        self._cluster_ids = {cluster_id} if cluster_id is not None else set()
        try:
            yield
        finally:
            self._cluster_ids = None

    def find_coordinators(self, group_ids: Sequence[str], *, timeout_s: float) -> dict[str, Coordinator | KafkaError]:
        """Return the coordinator of each group, or the error for this group. Raises NetError if no broker answers."""
        deadline = self._clock.monotonic() + timeout_s
        names = list(dict.fromkeys(group_ids))
        found: dict[str, Coordinator | KafkaError] = {}
        for start in range(0, len(names), GROUPS_PER_LOOKUP):
            part = tuple(names[start : start + GROUPS_PER_LOOKUP])
            request = FindCoordinatorRequest(key_type=GROUP_KEY_TYPE, coordinator_keys=part)
            response = self._call_any(request, max(0.0, deadline - self._clock.monotonic()))
            for name in part:
                found[name] = KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR, f"coordinator of group {name!r}", "missing in the broker's response"
                )
            for entry in response.coordinators:
                if entry.error_code == ErrorCode.NONE:
                    found[entry.key] = Coordinator(entry.node_id, BrokerAddress(entry.host, entry.port))
                else:
                    subject = f"coordinator of group {entry.key!r}"
                    found[entry.key] = KafkaError(entry.error_code, subject, entry.error_message)
        return found

    def close(self) -> None:
        """Close all connections; pending calls end with Disconnected. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for lane in self._lanes.values():
            lane.shut(Disconnected("the client was closed", address=lane.address, reason="ClientClosed"))
        self._lanes.clear()
        self._deadlines.clear()
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()

    def _poll_once(self, wait_s: float) -> None:
        """Do due work, then wait at most `wait_s` for socket events and handle them."""
        if self._closed:
            return
        now = self._clock.monotonic()
        ended, due = self._advance(now)
        if ended:
            wait_s = 0.0
        for key, mask in self._selector.select(max(0.0, min(wait_s, due - now))):
            lane: BrokerLane | None = key.data
            if lane is None:
                self._woken = True
                with contextlib.suppress(BlockingIOError):
                    while self._wake_reader.recv(4096):
                        continue
            else:
                ended += lane.on_events(mask, self._clock.monotonic())
        ended += self._advance(self._clock.monotonic())[0]
        self._ended = self._ended or ended > 0

    def _advance(self, now: float) -> tuple[int, float]:
        """Do all due work. Returns the number of calls that ended, and the next time at which work is due."""
        ended, due = 0, float("inf")
        while self._deadlines and (self._deadlines[0][2].done or self._deadlines[0][0] <= now):
            _, _, call, lane = heapq.heappop(self._deadlines)
            if not call.done:
                ended += lane.expire(call, now)
        if self._deadlines:
            due = self._deadlines[0][0]
        places, crowded = CONNECTIONS_MAX - self._connections, False
        for key, lane in list(self._lanes.items()):
            if lane.wants_connection(now):
                if not self._lookups.has_room(lane.address):
                    continue  # the end of a lookup wakes the loop
                if places <= 0 and not crowded:
                    crowded = not self._close_unused()
                    places += not crowded
                if crowded:
                    continue  # the lane waits until a connection closes or becomes unused
                places -= 1
            ended += lane.advance(now)
            if lane.unused:
                del self._lanes[key]
            else:
                due = min(due, lane.next_at(now))
        if crowded and self._connections < CONNECTIONS_MAX:
            due = now  # a connection was closed in this round
        return ended, due

    @property
    def _connections(self) -> int:
        return sum(lane.connected for lane in self._lanes.values())

    def _close_unused(self) -> bool:
        """Close the connection that has been unused the longest. Returns False if all connections are in use."""
        unused = [(since, key) for key, lane in self._lanes.items() if (since := lane.unused_since) is not None]
        if not unused:
            return False
        self._lanes[min(unused)[1]].drop_connection()
        return True

    def _check(self, address: BrokerAddress, response: MetadataResponse) -> None:
        """Raise NetError for a response that must not be used."""
        if len(response.brokers) > BROKERS_MAX:
            raise MalformedResponse(
                f"broker {address} lists {len(response.brokers)} brokers; a cluster has at most {BROKERS_MAX}",
                address=address,
            )
        if self._cluster_ids and response.cluster_id not in self._cluster_ids:
            (wanted,) = self._cluster_ids
            raise AnotherCluster(
                f"broker {address} belongs to Kafka cluster {response.cluster_id} and not to {wanted}; check the "
                "bootstrap servers",
                address=address,
            )
        if self._cluster_ids is not None and not response.brokers:
            # If this response were accepted, the client would keep using its previous brokers, maybe of another
            # cluster.
            raise NoBrokersListed(f"broker {address} lists no brokers of its cluster yet", address=address)

    def _call_any(
        self,
        request: Request[ResponseT],
        timeout_s: float,
        *,
        also: Sequence[BrokerAddress] = (),
        check: Callable[[BrokerAddress, ResponseT], None] = lambda *_: None,
    ) -> ResponseT:
        """Try brokers one after the other until a response passes the check, or the timeout expires.

        Wrong credentials and unsupported versions are raised immediately, because the next broker would report the same
        error. If all failures of a round over the brokers are permanent, the first of them is raised.
        """
        deadline = self._clock.monotonic() + timeout_s
        failures: dict[BrokerAddress, NetError] = {}
        while True:
            candidates = self._candidates(also)
            for index, address in enumerate(candidates):
                remaining_s = deadline - self._clock.monotonic()
                if remaining_s <= 0 and failures:
                    break
                try:
                    share_s = remaining_s / (len(candidates) - index)
                    response = self.call(address, request, timeout_s=share_s)
                    check(address, response)
                    return response
                except (AuthenticationFailed, UnsupportedByBroker):
                    raise
                except NetError as error:
                    # A timeout must not replace an earlier, more precise error of this address.
                    if not isinstance(error, RequestTimedOut) or address not in failures:
                        failures[address] = error
            hopeless = [error for error in failures.values() if not error.retriable]
            if len(hopeless) == len(failures) or self._closed:
                raise next(iter(failures.values()))
            if self._clock.monotonic() >= deadline:
                raise AllBrokersUnreachable(
                    f"none of {len(failures)} brokers answered within {round(timeout_s, 2):g} s: "
                    f"{listed(failures.values())}",
                    failures=tuple(failures.values()),
                )
            next_round = min(deadline, self._clock.monotonic() + ROUND_PAUSE_SECONDS)
            while not self._closed and self._clock.monotonic() < next_round:
                self._poll_once(next_round - self._clock.monotonic())

    def _candidates(self, also: Sequence[BrokerAddress]) -> list[BrokerAddress]:
        """Return addresses in the order in which to try them. The known brokers come first, or the bootstrap addresses
        if no broker is known; `also` comes last. Within each of these two lists, connected brokers come first, then
        brokers with the fewest failures."""
        known = dict.fromkeys(self._brokers.values() or self._bootstrap)

        def preference(address: BrokerAddress) -> tuple[bool, bool, int, float]:
            lane = self._lanes.get((address, MAIN_LANE))
            pause = self._pauses.get(address)
            return (
                address not in known,
                not (lane is not None and lane.open),
                pause.failures if pause is not None else 0,
                self._chance.random(),
            )

        return sorted({*known, *also}, key=preference)
