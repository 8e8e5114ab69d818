"""Client of a whole cluster, which maintains the connections to its brokers."""

from __future__ import annotations

import contextlib
import heapq
import random
import selectors
import socket
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar

from fleet_consumer.clock import Clock, SystemClock
from fleet_consumer.net.addresses import BrokerAddress
from fleet_consumer.net.connection import IoLoop
from fleet_consumer.net.errors import (
    AllBrokersUnreachable,
    AuthenticationFailed,
    Disconnected,
    NetError,
    RequestTimedOut,
    UnsupportedByBroker,
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
"""The number of groups in one FindCoordinator request; more are split over several, to keep messages small."""

_SYSTEM_CLOCK: Final = SystemClock()


class Coordinator(NamedTuple):
    """The broker that coordinates a group."""

    node_id: int
    address: BrokerAddress


class NetworkClient:
    """A client of one cluster's brokers, used from one thread; only `wakeup` may be called from any.

    The constructor does no I/O; connections are opened when a call needs them. A lane is a separate connection to the
    same broker, for requests that must not wait behind each other. A sent request that times out closes its connection;
    other calls on it end with Disconnected.
    """

    def __init__(self, settings: ConnectionSettings, clock: Clock = _SYSTEM_CLOCK) -> None:
        self._settings = settings
        self._clock = clock
        self._chance = random.Random()
        self._bootstrap = settings.bootstrap_addresses
        self._brokers: dict[int, BrokerAddress] = {}
        self._selector = selectors.DefaultSelector()
        self._lanes: dict[tuple[BrokerAddress, str], BrokerLane] = {}
        self._pauses: dict[BrokerAddress, ReconnectPause] = {}
        self._deadlines: list[tuple[float, int, Call[Any], BrokerLane]] = []
        self._sequence = count()
        self._closed = False
        # One-slot latches: events since the last poll returned. Only the owning thread uses them.
        self._ended = False
        self._woken = False
        # The wake-up pair: any thread writes one byte, the owning thread reads; a full pipe means "woken" already.
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)

    @property
    def brokers(self) -> Mapping[int, BrokerAddress]:
        """The brokers by node id from the last `metadata`; empty before the first."""
        return self._brokers

    def send(
        self,
        address: BrokerAddress,
        request: Request[ResponseT],
        *,
        lane: str = MAIN_LANE,
        timeout_s: float | None = None,
    ) -> Call[ResponseT]:
        """Queue a request; `poll` sends it. Never blocks; every failure is reported through the call.

        `timeout_s` spans from now to the response; the default is the settings' request timeout.
        """
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
                loop=IoLoop(self._selector, self.wakeup),
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
            given_up.shut(Disconnected(f"connection to broker {address} closed: no answer", address=address))
            self._ended = True

    def poll(self, timeout_s: float) -> None:
        """Do I/O and timeouts until a call ends, `wakeup` is called, or `timeout_s` seconds have passed."""
        deadline = self._clock.monotonic() + timeout_s
        while True:
            self._turn(0.0 if self._ended or self._woken else deadline - self._clock.monotonic())
            if self._ended or self._woken or self._closed or self._clock.monotonic() >= deadline:
                self._ended = self._woken = False
                return

    def wakeup(self) -> None:
        """Make the current or the next `poll` return at once. Safe from any thread, and after `close`."""
        with contextlib.suppress(OSError):  # full: it will wake up anyway; closed: nobody is left to wake
            self._wake_writer.send(b"\0")

    def call(
        self, address: BrokerAddress | None, request: Request[ResponseT], *, lane: str = MAIN_LANE, timeout_s: float
    ) -> ResponseT:
        """Send and wait for the response; None tries any broker, one after the other. Raises NetError.

        A `wakeup` does not end the wait; it is kept for the next `poll`.
        """
        if address is None:
            return self._call_any(request, lane, timeout_s)
        call = self.send(address, request, lane=lane, timeout_s=timeout_s)
        while not call.done:
            self._turn(call.deadline - self._clock.monotonic())
        return call.response

    def metadata(self, topics: Sequence[str] | None = (), *, timeout_s: float) -> MetadataResponse:
        """Request brokers and topics (None: all topics) from any broker, and store the brokers. Raises NetError.

        Never creates topics. A topic that cannot be described carries its error code in the response.
        """
        wanted = None if topics is None else tuple(MetadataRequestTopic(name=name) for name in topics)
        response = self._call_any(MetadataRequest(topics=wanted, allow_auto_topic_creation=False), MAIN_LANE, timeout_s)
        # A broker that is still starting may know of none; the brokers known before are then the better guess.
        if response.brokers:
            self._brokers = {broker.node_id: BrokerAddress(broker.host, broker.port) for broker in response.brokers}
            in_use = {address for address, _ in self._lanes}
            for address in self._pauses.keys() - {*self._brokers.values(), *self._bootstrap} - in_use:
                del self._pauses[address]
        return response

    def find_coordinators(self, group_ids: Sequence[str], *, timeout_s: float) -> dict[str, Coordinator | KafkaError]:
        """Find the coordinator of each group, or the error. Raises NetError if no broker answers."""
        deadline = self._clock.monotonic() + timeout_s
        names = list(dict.fromkeys(group_ids))
        found: dict[str, Coordinator | KafkaError] = {}
        for start in range(0, len(names), GROUPS_PER_LOOKUP):
            part = tuple(names[start : start + GROUPS_PER_LOOKUP])
            request = FindCoordinatorRequest(key_type=GROUP_KEY_TYPE, coordinator_keys=part)
            response = self._call_any(request, MAIN_LANE, max(0.0, deadline - self._clock.monotonic()))
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

    def _turn(self, wait_s: float) -> None:
        """One round: due work, then socket events, waiting at most `wait_s` for them."""
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
        """Do all work that is due; returns how many calls ended, and the time of the next due work."""
        ended, due = 0, float("inf")
        while self._deadlines and (self._deadlines[0][2].done or self._deadlines[0][0] <= now):
            _, _, call, lane = heapq.heappop(self._deadlines)
            if not call.done:
                ended += lane.expire(call, now)
        if self._deadlines:
            due = self._deadlines[0][0]
        for key, lane in list(self._lanes.items()):
            ended += lane.advance(now)
            if lane.unused:
                del self._lanes[key]
            else:
                due = min(due, lane.due(now))
        return ended, due

    def _call_any(self, request: Request[ResponseT], lane: str, timeout_s: float) -> ResponseT:
        """Try one broker after the other until one answers or the time is over.

        Wrong credentials and unsupported versions end it at once, since the next broker would report the same; a round
        with only permanent failures ends it too.
        """
        deadline = self._clock.monotonic() + timeout_s
        failures: dict[BrokerAddress, NetError] = {}
        while True:
            candidates = self._candidates()
            for index, address in enumerate(candidates):
                remaining_s = deadline - self._clock.monotonic()
                if remaining_s <= 0 and failures:
                    break
                try:
                    return self.call(address, request, lane=lane, timeout_s=remaining_s / (len(candidates) - index))
                except (AuthenticationFailed, UnsupportedByBroker):
                    raise
                except NetError as error:
                    # A mere timeout must not replace an earlier, more precise error of this address.
                    if not isinstance(error, RequestTimedOut) or address not in failures:
                        failures[address] = error
            hopeless = [error for error in failures.values() if not error.retriable]
            if len(hopeless) == len(failures) or self._closed:
                raise next(iter(failures.values()))
            if self._clock.monotonic() >= deadline:
                listed = "; ".join(str(error) for error in failures.values())
                raise AllBrokersUnreachable(
                    f"none of {len(failures)} brokers answered within {round(timeout_s, 2):g} s: {listed}",
                    failures=tuple(failures.values()),
                )

    def _candidates(self) -> list[BrokerAddress]:
        """Addresses in order: connected first, then by fewest failures; always with the bootstrap list.

        So a cluster whose brokers have all moved is found again through its bootstrap addresses.
        """
        addresses = list(dict.fromkeys((*self._brokers.values(), *self._bootstrap)))
        self._chance.shuffle(addresses)

        def preference(address: BrokerAddress) -> tuple[bool, int]:
            lane = self._lanes.get((address, MAIN_LANE))
            pause = self._pauses.get(address)
            return not (lane is not None and lane.open), pause.failures if pause is not None else 0

        return sorted(addresses, key=preference)
