"""Rates of partitions as members report them: one-byte levels, and their encoding.

A level is the logarithm of a rate. With eight levels per doubling, a rate is accurate to 5 %. Level 0 is an idle
partition. A thousand partitions of one topic need about a thousand bytes.

A member reports the levels that it measured (`own`). Each plan makes a few members keepers, which store the levels of
the plan and also report these (`kept`). Without keepers, some levels would be lost: those that a leaving member
measured, and those of moving partitions, which have no owner for one rebalance.

    report:  version (1 byte: 1), section `own`, section `kept`
    section: number of topics, then each topic
    topic:   length of the name, name, number of runs, then each run of consecutive partition numbers
    run:     partition numbers skipped since the last run, length of the run, one level (1 byte) for each partition

Numbers are unsigned LEB128. Unreadable data counts as no report, because any member may send any bytes.

Decision: docs/decisions/0056-partitions-by-load.md.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median_low
from typing import Final

from fleet_consumer.wire.errors import MalformedMessage
from fleet_consumer.wire.primitives import read_uvarint, write_uvarint

Levels = Mapping[str, Mapping[int, int]]
"""Levels of partitions, keyed by topic and partition number."""

VERSION: Final = 1
STEPS: Final = 8
"""Levels per doubling of a rate."""
UNIT_LEVEL: Final = 81
"""Level of one record per second. Level 1 is about one record in seventeen minutes, the highest level 3.5 million
records per second."""
LEVEL_MAX: Final = 255
SECTION_BYTES_MAX: Final = 32 * 1024
"""Maximum size in bytes of each section (`own`, `kept`). To stay below this size, the least busy topics are left
out."""
NUMBER_MAX: Final = 2**31 - 1
TOLERANCE: Final = 6
"""A rate must change by more than this many levels (a factor of 1.7) to affect a plan. Noise of 20 % is three levels,
so two partitions with noise in opposite directions differ by six levels."""


def level_of(rate: float) -> int:
    if not rate > 0:
        return 0
    if math.isinf(rate):
        return LEVEL_MAX
    return max(0, min(LEVEL_MAX, round(STEPS * math.log2(rate)) + UNIT_LEVEL))


WEIGHTS: Final = (0, *(round(2 ** (14 + (level - UNIT_LEVEL) / STEPS)) for level in range(1, LEVEL_MAX + 1)))
"""The rate of each level as an integer; unlike floats, integers have the same sum in any order."""


@dataclass(frozen=True, slots=True)
class Report:
    own: Levels = field(default_factory=dict)
    kept: Levels = field(default_factory=dict)


NO_REPORT: Final = Report()


def encode_report(report: Report) -> bytes:
    return bytes((VERSION,)) + _section(report.own) + _section(report.kept)


def decode_report(data: bytes | None) -> Report:
    """Decode a report. Returns `NO_REPORT` if `data` is empty, damaged or in an unknown version."""
    if not data or data[0] != VERSION:
        return NO_REPORT
    try:
        own, at = _read_section(data, 1)
        kept, at = _read_section(data, at)
    except (IndexError, ValueError, MalformedMessage):  # UnicodeDecodeError is a ValueError
        return NO_REPORT
    return Report(own, kept) if at == len(data) else NO_REPORT


def steady(measured: Levels, former: Levels) -> dict[str, dict[int, int]]:
    """Return the levels to plan with, from the `former` levels and the newly `measured` levels.

    A partition keeps its former level unless its share of the load has changed by more than `TOLERANCE`. The load of
    all partitions may rise or fall by the same factor without changing their shares. So the median difference between
    measured and former levels is subtracted first. As long as all partitions keep their former levels, noise does not
    change the plan.
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
    """Return the levels and the position after the section. Memory use is proportional to the size of the data."""
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
