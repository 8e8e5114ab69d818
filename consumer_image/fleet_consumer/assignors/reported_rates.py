"""The rates of partitions as members report them: levels of one byte, and the bytes in which they travel.

A level is the logarithm of a rate: eight to each doubling, so that a rate is kept within 5 %. Level 0 is an idle
partition. A thousand partitions of one topic are about a thousand bytes.

A member reports what it measures itself (`own`) and what the last plan was made with, if that plan made it a keeper
(`kept`). A partition that moves has no owner for one rebalance, and a member that leaves takes its measurements along:
the keepers still have the rates of both.

    version (1 byte, 1), own, kept: each the number of topics, then for each topic the length of its name, its name,
    the number of runs, and for each run the numbers skipped since the last one, its length, and a level for each.

Numbers are unsigned LEB128. What cannot be read counts as no report: any member may send anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median_low
from typing import Final

from fleet_consumer.wire.errors import MalformedMessage
from fleet_consumer.wire.primitives import read_uvarint, write_uvarint

Levels = Mapping[str, Mapping[int, int]]
"""The levels of partitions by topic and number."""

VERSION: Final = 1
STEPS: Final = 8
"""Levels to each doubling of a rate."""
UNIT_LEVEL: Final = 81
"""The level of one record per second: level 1 is about one in seventeen minutes, the highest 3.5 million a second."""
LEVEL_MAX: Final = 255
SECTION_BYTES_MAX: Final = 32 * 1024
"""The bound on what a member measured, and on what it keeps; the busiest topics go first."""
NUMBER_MAX: Final = 2**31 - 1
TOLERANCE: Final = 6
"""Levels by which a rate may change before a plan sees it: a factor of 1.7. Noise of 20 % is three levels, and as many
the other way where most partitions had it."""


def level_of(rate: float) -> int:
    """The level of a rate in records per second."""
    if not rate > 0:
        return 0
    if math.isinf(rate):
        return LEVEL_MAX
    return max(0, min(LEVEL_MAX, round(STEPS * math.log2(rate)) + UNIT_LEVEL))


WEIGHTS: Final = (0, *(round(2 ** (14 + (level - UNIT_LEVEL) / STEPS)) for level in range(1, LEVEL_MAX + 1)))
"""The rate of each level, in integers: sums of them do not depend on their order."""


@dataclass(frozen=True, slots=True)
class Report:
    """The levels that a member measured, and those that it keeps of the last plan."""

    own: Levels = field(default_factory=dict)
    kept: Levels = field(default_factory=dict)


NO_REPORT: Final = Report()


def encode_report(report: Report) -> bytes:
    return bytes((VERSION,)) + _section(report.own) + _section(report.kept)


def decode_report(data: bytes | None) -> Report:
    """Read a report; NO_REPORT if there is none, or if the bytes are of another version or damaged."""
    if not data or data[0] != VERSION:
        return NO_REPORT
    try:
        own, at = _read_section(data, 1)
        kept, at = _read_section(data, at)
    except (IndexError, ValueError, MalformedMessage):  # UnicodeDecodeError is a ValueError
        return NO_REPORT
    return Report(own, kept) if at == len(data) else NO_REPORT


def steady(measured: Levels, former: Levels) -> dict[str, dict[int, int]]:
    """The levels to plan with: the former one of each partition, unless its share of the load has really changed.

    Where the load of the whole group rises or falls, no share changes: the usual difference of levels is taken off.
    With the former levels a plan repeats itself exactly, whatever the noise.
    """
    before = {topic: dict(levels) for topic, levels in former.items()}
    differences = [
        level - old
        for topic, levels in measured.items()
        for number, level in levels.items()
        if (old := before.get(topic, {}).get(number)) and level
    ]
    usual = median_low(differences) if differences else 0
    for topic, levels in measured.items():
        known = before.setdefault(topic, {})
        for number, level in levels.items():
            now, old = max(1, min(LEVEL_MAX, level - usual)) if level else 0, known.get(number, 0)
            if not (now and old and abs(now - old) <= TOLERANCE):
                known[number] = now
    return before


def _section(levels: Levels) -> bytes:
    def load(topic: str) -> tuple[int, str]:
        return -sum(WEIGHTS[level] for level in levels[topic].values()), topic

    parts, size = list[bytes](), 0
    for topic in sorted(levels, key=load):
        part = _topic(topic, levels[topic])
        if levels[topic] and size + len(part) <= SECTION_BYTES_MAX:
            parts.append(part)
            size += len(part)
    return b"".join((_number(len(parts)), *parts))


def _topic(topic: str, levels: Mapping[int, int]) -> bytes:
    name, runs, end = topic.encode(), list[bytes](), 0
    for run in _runs(sorted(levels)):
        runs.append(_number(run.start - end) + _number(len(run)) + bytes(levels[number] for number in run))
        end = run.stop
    return b"".join((_number(len(name)), name, _number(len(runs)), *runs))


def _runs(numbers: list[int]) -> Iterator[range]:
    """Cut sorted numbers into runs of neighbours."""
    start = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            yield range(numbers[start], numbers[at - 1] + 1)
            start = at


def _number(value: int) -> bytes:
    encoded = bytearray()
    write_uvarint(encoded, value)
    return bytes(encoded)


def _read_section(data: bytes, at: int) -> tuple[dict[str, dict[int, int]], int]:
    """Read the levels of a section; returns them and their end. Memory stays within the size of the data."""
    levels: dict[str, dict[int, int]] = {}
    topics, at = read_uvarint(data, at)
    for _ in range(topics):
        length, at = read_uvarint(data, at)
        name = _slice(data, at, length).decode()
        runs, at = read_uvarint(data, at + length)
        known, number = levels.setdefault(name, {}), 0
        for _ in range(runs):
            skipped, at = read_uvarint(data, at)
            length, at = read_uvarint(data, at)
            number += skipped
            known.update(enumerate(_slice(data, at, length), number))
            number, at = number + length, at + length
            if number > NUMBER_MAX:
                raise ValueError(f"partition {number} of {name!r}")
    return levels, at


def _slice(data: bytes, at: int, length: int) -> bytes:
    if at + length > len(data):
        raise ValueError(f"{length} bytes at {at} of {len(data)}")
    return data[at : at + length]
