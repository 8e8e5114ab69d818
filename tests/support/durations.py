"""Measured durations, by which a run is planned: the longest suites and tests start first, and suites share processors.

`python -m tests.run --record` writes them to `tests/durations.json` from the JUnit reports of its suites.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

__all__ = [
    "FILE",
    "PROCESSOR_SECONDS",
    "Duration",
    "case_name",
    "durations",
    "read_duration",
    "seconds_of_test",
    "write_durations",
]

FILE: Final = Path(__file__).resolve().parents[1] / "durations.json"
PROCESSOR_SECONDS: Final = "processor-seconds"
"""A property in a suite's report: processor time of programs that are not its children, such as a cluster."""
SHORTEST_S: Final = 2.0
"""Shorter tests are not recorded: their order does not matter."""


@dataclass(frozen=True, slots=True)
class Duration:
    """A suite's wall and processor time, and the wall time of each of its longer tests, all in seconds."""

    seconds: float
    processor_seconds: float
    tests: Mapping[str, float] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Mean number of processors that the suite uses."""
        return self.processor_seconds / max(self.seconds, 1.0)


def durations(path: Path = FILE) -> dict[str, Duration]:
    """Recorded durations by suite name."""
    found = json.loads(path.read_text()) if path.exists() else {}
    return {name: Duration(**entry) for name, entry in found.items()}


@cache
def _seconds_by_test() -> dict[str, float]:
    return {name: seconds for suite in durations().values() for name, seconds in suite.tests.items()}


def seconds_of_test(node_id: str) -> float:
    """Recorded duration of a test; 0 for a short or an unknown one."""
    return _seconds_by_test().get(_node_name(node_id), 0.0)


def _node_name(node_id: str) -> str:
    """A test's name as JUnit reports have it: `tests.broker.test_net::test_that[case]`."""
    path, _, rest = node_id.partition("::")
    return f"{path.removesuffix('.py').replace('/', '.')}::{rest}"


def case_name(case: ElementTree.Element) -> str:
    """Name of a report's test case."""
    return f"{case.get('classname')}::{case.get('name')}"


def read_duration(report: Path, *, seconds: float, processor_seconds: float) -> Duration:
    """A suite's duration from its JUnit report, wall time and the processor time of its process."""
    root = ElementTree.parse(report).getroot()
    cases = {case_name(case): round(float(case.get("time", "0")), 1) for case in root.iter("testcase")}
    parallel = sum(
        float(each.get("value", "0")) for each in root.iter("property") if each.get("name") == PROCESSOR_SECONDS
    )
    tests = {name: taken for name, taken in sorted(cases.items()) if taken >= SHORTEST_S}
    return Duration(round(seconds), round(processor_seconds + parallel), tests)


def write_durations(measured: Mapping[str, Duration], path: Path = FILE) -> None:
    """Replace the entries of these suites; the others keep theirs."""
    every = {**durations(path), **measured}
    entries = {
        name: {"seconds": each.seconds, "processor_seconds": each.processor_seconds, "tests": dict(each.tests)}
        for name, each in sorted(every.items())
    }
    path.write_text(json.dumps(entries, indent=1) + "\n")
