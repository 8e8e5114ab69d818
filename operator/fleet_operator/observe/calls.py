"""The calls of a poll: reuses repeated requests, waits for calls, and reads responses. Used by one thread.

Most groups do not change between polls, so the response to the same request often has the same bytes. Then the bytes
are not decoded again, and the previous response object is reused.
"""

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
    """The observer was stopped during a poll."""


def wait(client: NetworkClient, calls: Iterable[Call[Any]], stopping: Callable[[], bool]) -> None:
    """Wait until every call has ended or timed out. Raises PollAbandonedError if the observer is stopped."""
    pending = list(calls)
    while pending := [call for call in pending if not call.done]:
        if stopping():
            raise PollAbandonedError
        client.poll(POLL_SECONDS)


class _Repeated:
    """A request with its last encoding and its last response. All other attributes are those of the request."""

    __slots__ = ("_answered", "_encoded", "request")

    def __init__(self, request: Request[Any]) -> None:
        self.request = request
        self._encoded: tuple[int, bytes] | None = None
        self._answered: tuple[int, bytes, Response] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.request, name)

    def encode(self, version: int) -> bytes:
        if self._encoded is None or self._encoded[0] != version:
            self._encoded = (version, self.request.encode(version))
        return self._encoded[1]

    def decode_response(self, version: int, buffer: bytes) -> Response:
        """Decode a response; return the previous response object if the bytes are equal."""
        if self._answered is None or self._answered[:2] != (version, buffer):
            self._answered = (version, buffer, self.request.decode_response(version, buffer))
        return self._answered[2]


class Repeats:
    """The requests to each broker in the last poll of a `GroupPart`, for reuse. Requests that the next poll does not
    repeat are dropped."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], _Repeated] = {}
        self._made: dict[tuple[int, int], _Repeated] = {}

    def reuse(self, node_id: int, request: Request[ResponseT]) -> Request[ResponseT]:
        """If the previous poll made an equal request, return that request; otherwise remember and return `request`."""
        key = (node_id, hash(request))  # the hash is computed once, because a request lists thousands of partitions
        found = self._made.get(key) or self._known.get(key)
        if found is None or found.request != request:
            found = _Repeated(request)
        self._made[key] = found
        return cast("Request[ResponseT]", found)

    def end_poll(self) -> None:
        self._known, self._made = self._made, {}


Asked = tuple[str, ...]
"""The group ids in a request."""


@dataclass(slots=True)
class Questions:
    """The calls of the main phase of a poll, which are in flight together."""

    listed: dict[int, Call[ListGroupsResponse]] = field(default_factory=dict)
    described: list[tuple[Asked, Call[DescribeGroupsResponse]]] = field(default_factory=list)
    fetched: list[tuple[Asked, Call[OffsetFetchResponse]]] = field(default_factory=list)
    starts: list[Call[ListOffsetsResponse]] = field(default_factory=list)
    ends: dict[bool, list[Call[ListOffsetsResponse]]] = field(default_factory=lambda: {False: [], True: []})
    highs: list[Call[ListOffsetsResponse]] = field(default_factory=list)
    """Calls for high watermarks. They are compared with the last stable offsets from `ends`."""
    others: list[tuple[Call[Any], Callable[[Any], None]]] = field(default_factory=list)
    """Calls for settings, each with a function that records the response."""
    managed: set[str] = field(default_factory=set)
    """The managed topics whose log start offsets are requested."""

    def calls(self) -> Iterator[Call[Any]]:
        pairs = (call for _, call in chain[tuple[Asked, Call[Any]]](self.described, self.fetched))
        others = (call for call, _ in self.others)
        return chain(self.listed.values(), pairs, self.starts, *self.ends.values(), self.highs, others)

    def ask(self, call: Call[ResponseT], take: Callable[[ResponseT], None]) -> None:
        self.others.append((call, take))

    def take_groups(self, facts: Mapping[str, GroupFacts]) -> None:
        """Record each requested group's description and commits, or the error of the call."""
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
    """The offsets from all successful calls, keyed by topic. Offsets of one topic may come from several calls, because
    its partitions have several leaders."""
    found: dict[str, Offsets] = {}
    for call in calls:
        if call.error is None:
            for topic, offsets in aggregation.offsets_by_topic(call.response).items():
                found[topic] = found[topic] | offsets if topic in found else offsets
    return found


def _blame(call: Call[Any], asked: Iterable[str], facts: Mapping[str, GroupFacts]) -> bool:
    """Return True if a call succeeded; otherwise record the call's error in the facts of the requested groups."""
    if call.error is None:
        return True
    for group_id in asked:
        facts[group_id].error = facts[group_id].error or call.error.reason
    return False
