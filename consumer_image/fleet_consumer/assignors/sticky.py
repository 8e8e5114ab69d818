"""The sticky assignors. Members with `sticky` revoke all partitions before a rebalance; members with
`cooperative-sticky` revoke only moving partitions (KIP-429).

Both assignors make the same plan. The group may include Java members with the same assignor, because the user data has
the same format. Java's plan partly depends on the order of hash maps; this plan uses the order of names instead. Counts
and invariants are the same.

Members with `sticky` own no partitions when they join, so their user data lists their previous partitions
(`StickyAssignorUserData` version 1: partitions by topic, then the generation; version 0 lacks the generation). With
`cooperative-sticky`, the user data has only the generation, for subscription versions without a generation field.
Unreadable user data raises no error; the member is treated as having owned no partitions.
"""

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
"""Maximum number of cached layouts. With more layouts, a cache would not be faster than parsing each member's data
separately."""
NOTHING: Final = Claim({}, UNKNOWN_GENERATION)


def encode_sticky(owned: Mapping[str, Sequence[int]], generation: int) -> bytes:
    """Encode version 1 of `StickyAssignorUserData`."""
    parts = [_INT32.pack(len(owned))]
    for topic, numbers in owned.items():
        name = topic.encode()
        parts += (_UINT16.pack(len(name)), name, struct.pack(f">{len(numbers) + 1}i", len(numbers), *numbers))
    parts.append(_INT32.pack(generation))
    return b"".join(parts)


class StickyReader:
    """A leader's parser of many members' user data. Thousands of members send the same topics, and often the same
    layout. So names and layouts are cached, and data with a known layout is parsed in one step."""

    def __init__(self) -> None:
        self._topics: dict[bytes, str] = {}
        self._forms: dict[int, _Form | None] = {}

    def parse(self, data: bytes | None) -> Claim:
        """Parse version 1 or version 0 (without generation). Returns `NOTHING` for all other bytes."""
        if not data:
            return NOTHING
        form = self._forms.get(len(data))
        claim = form.parse(data, self._topics) if form else None
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
    """A layout of user data: the lengths of topic names and the partition counts, in order."""

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

    def parse(self, data: bytes, topics: Mapping[bytes, str]) -> Claim | None:
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
    """Parse the partitions, keyed by topic. Returns the partitions and the position after them. Memory use is
    proportional to the size of the data.

    A leader parses a million of these entries, most of them with one partition. So the number of partitions and the
    first partition number are read together, and four padding bytes follow the data to prevent a read past its end. If
    the length of a name is too large, the position passes the end of the data, which is detected only afterwards.
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
    """Return the generation in the user data of Java's `CooperativeStickyAssignor`, or -1 if it is absent."""
    if data is None or len(data) < _INT32.size:
        return UNKNOWN_GENERATION
    generation: int = _INT32.unpack_from(data)[0]
    return generation


class StickyAssignor:
    """Makes balanced plans. Among the most balanced plans, it chooses the one that changes the fewest owners. A
    member's previous partitions come from its user data or, if it has none, from `owned` and `generation`."""

    name = "sticky"
    version = 1
    protocol: RebalanceProtocol = EAGER

    def __init__(self) -> None:
        self._remembered: tuple[Assignment, int] | None = None

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """Return this member's last assignment and its generation, or None before the first assignment."""
        if self._remembered is None:
            return None
        assignment, generation = self._remembered
        return encode_sticky(assignment.partitions, generation)

    def assign(self, cluster: ClusterView, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        with gc_paused():
            reader = StickyReader()
            claims = {
                member: reader.parse(joined.user_data) if joined.user_data else Claim(joined.owned, joined.generation)
                for member, joined in subscriptions.items()
            }
            return plan_sticky(cluster, subscriptions, claims, hand_over=True)

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        self._remembered = (assignment, generation)


class CooperativeStickyAssignor:
    """Makes the plan of `sticky`, but in two rebalances: a moving partition is revoked in the first and assigned in the
    second."""

    name = "cooperative-sticky"
    version = 0
    protocol: RebalanceProtocol = COOPERATIVE

    def __init__(self) -> None:
        self._generation = UNKNOWN_GENERATION

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """Return the generation in Java's encoding, for leaders that do not read the subscription's generation
        field."""
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
