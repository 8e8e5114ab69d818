"""The calls of polls: what is asked, how it is waited for, and how answers are read. Used by one thread.

Most groups are as they were at the last poll, and a broker that is asked the same answers with the same bytes. Such an
answer is not decoded again: it is the very object that came before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, TypeVar, cast

from fleet_consumer.net import Call, NetworkClient
from fleet_consumer.wire.groups import DescribeGroupsResponse, ListGroupsResponse
from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.offsets import OffsetFetchResponse
from fleet_consumer.wire.topics import ListOffsetsResponse
from fleet_operator.observe import aggregation
from fleet_operator.observe.aggregation import GroupFacts, Offsets

ResponseT = TypeVar("ResponseT", bound=Response)
POLL_SECONDS: Final = 8.0


class PollAbandonedError(Exception):
    """The observer is being stopped in the middle of a poll."""


def wait(client: NetworkClient, calls: Iterable[Call[Any]], stopping: Callable[[], bool]) -> None:
    """Until every call has ended; each has its own time-out, so this ends too. Raises PollAbandonedError."""
    pending = list(calls)
    while pending := [call for call in pending if not call.done]:
        if stopping():
            raise PollAbandonedError
        client.poll(POLL_SECONDS)


class _Repeated:
    """A request, its last encoding and its last answer. Everything else is the request's own."""

    __slots__ = ("_answered", "_encoded", "request")

    def __init__(self, request: Request[Any]) -> None:
        self.request = request
        self._encoded: tuple[int, bytes] | None = None
        self._answered: tuple[int, bytes, Response] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.request, name)

    def encode(self, version: int) -> bytes:
        """As `Request.encode`, once for a version."""
        if self._encoded is None or self._encoded[0] != version:
            self._encoded = (version, self.request.encode(version))
        return self._encoded[1]

    def decode_response(self, version: int, buffer: bytes) -> Response:
        """As `Request.decode_response`; the last answer itself if this one has the same bytes."""
        if self._answered is None or self._answered[:2] != (version, buffer):
            self._answered = (version, buffer, self.request.decode_response(version, buffer))
        return self._answered[2]


class Repeats:
    """The requests of one part of the groups, by broker. Those that a poll did not make are forgotten at its end."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], _Repeated] = {}
        self._made: dict[tuple[int, int], _Repeated] = {}

    def of(self, node_id: int, request: Request[ResponseT]) -> Request[ResponseT]:
        """The request as made before, if it was."""
        key = (node_id, hash(request))  # taken once: a request names thousands of partitions
        found = self._made.get(key) or self._known.get(key)
        if found is None or found.request != request:
            found = _Repeated(request)
        self._made[key] = found
        return cast("Request[ResponseT]", found)

    def end_poll(self) -> None:
        self._known, self._made = self._made, {}


Asked = tuple[str, ...]
"""The groups that a call asks for."""


@dataclass(slots=True)
class Questions:
    """The calls of a poll's main phase."""

    listed: dict[int, Call[ListGroupsResponse]] = field(default_factory=dict)
    described: list[tuple[Asked, Call[DescribeGroupsResponse]]] = field(default_factory=list)
    fetched: list[tuple[Asked, Call[OffsetFetchResponse]]] = field(default_factory=list)
    starts: list[Call[ListOffsetsResponse]] = field(default_factory=list)
    ends: dict[bool, list[Call[ListOffsetsResponse]]] = field(default_factory=lambda: {False: [], True: []})
    highs: list[Call[ListOffsetsResponse]] = field(default_factory=list)
    """Of some topics whose last stable offsets are their ends."""
    others: list[tuple[Call[Any], Callable[[Any], None]]] = field(default_factory=list)
    """Of settings, with whatever takes the answer."""
    managed: set[str] = field(default_factory=set)
    """The managed topics whose starts were asked for."""

    def calls(self) -> Iterator[Call[Any]]:
        pairs = (call for _, call in chain[tuple[Asked, Call[Any]]](self.described, self.fetched))
        others = (call for call, _ in self.others)
        return chain(self.listed.values(), pairs, self.starts, *self.ends.values(), self.highs, others)

    def ask(self, call: Call[ResponseT], take: Callable[[ResponseT], None]) -> None:
        """Add a call with what takes its answer, if there is one."""
        self.others.append((call, take))

    def take_groups(self, facts: Mapping[str, GroupFacts]) -> None:
        """Give each group its description and its commits, or the error of the call that asked for them.

        A group that nobody asked for is none of ours, whatever a broker returns.
        """
        for asked, described in self.described:
            if _blame(described, asked, facts):
                for group in described.response.groups:
                    if group.group_id in facts:
                        facts[group.group_id].described = group
        for asked, fetched in self.fetched:
            if _blame(fetched, asked, facts):
                for group_id, positions in aggregation.positions(fetched.response).items():
                    if group_id not in facts:
                        continue
                    if isinstance(positions, str):
                        facts[group_id].error = facts[group_id].error or positions
                    else:
                        facts[group_id].committed = positions


def read(calls: Iterable[Call[ListOffsetsResponse]]) -> dict[str, Offsets]:
    """The offsets of all calls that were answered, by topic; partitions of one topic may be led by several brokers."""
    found: dict[str, Offsets] = {}
    for call in calls:
        if call.error is None:
            for topic, offsets in aggregation.offsets_by_topic(call.response).items():
                found[topic] = found[topic] | offsets if topic in found else offsets
    return found


def _blame(call: Call[Any], asked: Iterable[str], facts: Mapping[str, GroupFacts]) -> bool:
    """True if a call was answered; if not, its groups get the error."""
    if call.error is None:
        return True
    for group_id in asked:
        facts[group_id].error = facts[group_id].error or call.error.reason
    return False
