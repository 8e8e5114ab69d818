"""The sticky pair: `sticky` revokes everything before each rebalance, `cooperative-sticky` only what moves (KIP-429).

Both make the same plan and work with Java members of the same name: their user data has the same bytes. Where Java's
plan depends on the order of its hash maps, names decide here; counts and invariants are the same.

Members of `sticky` have revoked everything when they join, so their previous partitions travel as user data
(`StickyAssignorUserData` version 1: partitions by topic, then the generation; version 0 lacks the generation).
`cooperative-sticky` needs the generation only, for subscriptions of versions without a field for it. Unreadable bytes
never raise: such a member counts as having owned nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Final

from fleet_consumer.assignors.interface import (
    COOPERATIVE,
    EAGER,
    Assignment,
    ClusterView,
    RebalanceProtocol,
    Subscription,
)
from fleet_consumer.assignors.plans import gc_paused
from fleet_consumer.assignors.sticky_plan import Claim, plan_sticky

UNKNOWN_GENERATION: Final = -1
_INT32: Final = struct.Struct(">i")
_TWO_INT32: Final = struct.Struct(">ii")
_UINT16: Final = struct.Struct(">H")
MOST_FORMS: Final = 64
"""The number of layouts cached; if members differ more than that, reading each by itself is as fast."""
NOTHING: Final = Claim({}, UNKNOWN_GENERATION)


def encode_sticky(owned: Mapping[str, Sequence[int]], generation: int) -> bytes:
    """Version 1 of `StickyAssignorUserData`."""
    parts = [_INT32.pack(len(owned))]
    for topic, numbers in owned.items():
        name = topic.encode()
        parts += (_UINT16.pack(len(name)), name, struct.pack(f">{len(numbers) + 1}i", len(numbers), *numbers))
    parts.append(_INT32.pack(generation))
    return b"".join(parts)


class StickyReader:
    """A reader of many members' user data, for a leader; caches topic names and layouts.

    The same topics come back thousands of times. In a group with an even assignment even the lengths of names and the
    numbers of partitions agree: such data are read in one step.
    """

    def __init__(self) -> None:
        self._topics: dict[bytes, str] = {}
        self._forms: dict[int, _Form | None] = {}

    def read(self, data: bytes | None) -> Claim:
        """Read version 1, or 0, whose generation is unknown; NOTHING when the bytes are neither."""
        if not data:
            return NOTHING
        form = self._forms.get(len(data))
        claim = form.read(data, self._topics) if form else None
        return claim or self._read_slowly(data)

    def _read_slowly(self, data: bytes) -> Claim:
        try:
            owned, end = _read_owned(data, self._topics)
            has_generation = len(data) >= end + _INT32.size
            generation = _INT32.unpack_from(data, end)[0] if has_generation else UNKNOWN_GENERATION
        except (struct.error, UnicodeDecodeError, ValueError):
            return NOTHING
        if len(data) not in self._forms:
            self._forms[len(data)] = None
        elif owned and self._forms[len(data)] is None and len(self._forms) <= MOST_FORMS:
            self._forms[len(data)] = _Form(owned)
        return Claim(owned, generation)


class _Form:
    """A layout of user data: lengths of names and numbers of partitions in their order."""

    def __init__(self, owned: Mapping[str, Sequence[int]]) -> None:
        form, lengths, names, at = [">i"], [0], [], 1
        self._spans: list[tuple[int, int]] = []
        for topic, numbers in owned.items():
            form.append(f"H{len(topic.encode())}si{len(numbers)}i")
            lengths += (at, at + 2)
            names.append(at + 1)
            self._spans.append((at + 3, at + 3 + len(numbers)))
            at += 3 + len(numbers)
        self._struct = struct.Struct("".join([*form, "i"]))
        self._lengths = itemgetter(*lengths)
        self._names = itemgetter(*names, 0)
        self._expected = (
            len(owned),
            *(length for topic, numbers in owned.items() for length in (len(topic.encode()), len(numbers))),
        )

    def read(self, data: bytes, topics: Mapping[bytes, str]) -> Claim | None:
        if len(data) != self._struct.size:
            return None
        fields = self._struct.unpack(data)
        if self._lengths(fields) != self._expected:
            return None
        try:
            found = [*map(topics.__getitem__, self._names(fields)[:-1])]
        except KeyError:
            return None
        owned = dict(zip(found, [fields[start:end] for start, end in self._spans], strict=True))
        return Claim(owned, fields[-1]) if len(owned) == len(found) else None


def _read_owned(data: bytes, names: dict[bytes, str]) -> tuple[dict[str, Sequence[int]], int]:
    """Read the partitions by topic; returns them and their end. Memory stays within the size of the data.

    A leader reads a million of these entries, most of them with one partition. So a length and the first number are
    read together (four more bytes make that safe at the end), and names of impossible length run over the end.
    """
    length_of_name, two_ints, size = _UINT16.unpack_from, _TWO_INT32.unpack_from, len(data)
    padded = data + bytes(_INT32.size)
    owned: dict[str, Sequence[int]] = {}
    count, at = _INT32.unpack_from(data)[0], _INT32.size
    if count < 0 or count > size:
        raise ValueError(f"{count} topics in {size} bytes")
    for _ in range(count):
        start = at + _UINT16.size
        at = start + length_of_name(padded, at)[0]
        name = data[start:at]
        try:
            topic = names[name]
        except KeyError:
            topic = names[name] = name.decode()
        length, first = two_ints(padded, at)
        at += _INT32.size * (1 + length)
        if length == 1:
            numbers: tuple[int, ...] = (first,)
        elif length < 0 or at > size:
            raise ValueError(f"{length} partitions of {topic!r} in {size} bytes")
        else:
            numbers = struct.unpack_from(f">{length}i", data, at - _INT32.size * length)
        owned[topic] = (*owned[topic], *numbers) if topic in owned else numbers
    if at > size:
        raise ValueError(f"{count} topics end after {at} of {size} bytes")
    return owned, at


def decode_generation(data: bytes | None) -> int:
    """The generation in the user data of Java's `CooperativeStickyAssignor`, or -1 if absent."""
    if data is None or len(data) < _INT32.size:
        return UNKNOWN_GENERATION
    generation: int = _INT32.unpack_from(data)[0]
    return generation


class StickyAssignor:
    """As even as possible, then as unchanged as possible; members revoke everything before they rejoin.

    A member's previous partitions come in its user data; without user data, its `owned` and `generation` are used.
    """

    name = "sticky"
    version = 1
    protocol: RebalanceProtocol = EAGER

    def __init__(self) -> None:
        self._remembered: tuple[Assignment, int] | None = None

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """This member's last assignment and its generation; None before the first."""
        if self._remembered is None:
            return None
        assignment, generation = self._remembered
        return encode_sticky(assignment.partitions, generation)

    def assign(self, cluster: ClusterView, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        with gc_paused():
            reader = StickyReader()
            claims = {
                member: reader.read(joined.user_data) if joined.user_data else Claim(joined.owned, joined.generation)
                for member, joined in subscriptions.items()
            }
            return plan_sticky(cluster, subscriptions, claims, hand_over=True)

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        self._remembered = (assignment, generation)


class CooperativeStickyAssignor:
    """The plan of `sticky`, reached in two rounds: a partition that moves has no owner in between."""

    name = "cooperative-sticky"
    version = 0
    protocol: RebalanceProtocol = COOPERATIVE

    def __init__(self) -> None:
        self._generation = UNKNOWN_GENERATION

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """The generation, as Java's, for leaders that do not read it from the subscription itself."""
        return _INT32.pack(self._generation)

    def assign(self, cluster: ClusterView, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        claims = {
            member: Claim(
                joined.owned, joined.generation if joined.generation >= 0 else decode_generation(joined.user_data)
            )
            for member, joined in subscriptions.items()
        }
        with gc_paused():
            return plan_sticky(cluster, subscriptions, claims, hand_over=False)

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        self._generation = generation
