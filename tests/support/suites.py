"""Suites: one pytest run each, their outcomes, and the repetition of a failed test by itself.

A test on real parts shares the machine with brokers, clusters and other tests. One that fails there is repeated alone,
so not before the other suites of its stage are over. If it passes then, the run is green and reports the test as
flaky: the next thing to fix.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.support.together import ALONE

ROOT = Path(__file__).resolve().parents[2]
REPEATED_MAX = 8
"""The most failed tests of one suite that are repeated. More are no noise, and repeating them takes long."""
SLOW = ("--durations=10", "--durations-min=5")
"""Each suite ends with its slowest tests, which shows where a run's time went."""


@dataclass(frozen=True, slots=True)
class Suite:
    """One pytest run: its name, its folder or files, and its limit on two cores (quality targets, in seconds).

    `kubernetes`: it needs what `tests.support.programs` builds. `real`: it runs on brokers, servers or clusters, and so
    its failed tests are repeated.
    """

    name: str
    paths: tuple[str, ...]
    limit_s: int
    kubernetes: bool = False
    real: bool = True


@dataclass(slots=True)
class Outcome:
    """The result of one suite's run. `failed`, `flaky` and `skipped` pair a test's name with its reason."""

    name: str
    seconds: float
    exit_code: int
    passed: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    flaky: list[tuple[str, str]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def read_report(path: Path, outcome: Outcome) -> None:
    """Add the counts of a JUnit XML report to `outcome`; a missing or broken report leaves them at zero."""
    try:
        cases = list(ElementTree.parse(path).getroot().iter("testcase"))
    except (FileNotFoundError, ElementTree.ParseError):
        return
    for case in cases:
        name = f"{case.get('classname')}::{case.get('name')}"
        skip = case.find("skipped")
        wrong = case.find("failure")
        # Not `or`: an element without children is false.
        wrong = case.find("error") if wrong is None else wrong
        if skip is not None:
            outcome.skipped.append((name, skip.get("message") or "no reason given"))
        elif wrong is not None:
            outcome.failed.append((name, wrong.get("message") or "no reason given"))
        else:
            outcome.passed += 1


def run_suite(suite: Suite, extra: Sequence[str], scratch: Path, output: IO[bytes] | None = None) -> Outcome:
    """Run one suite and return the result; `output` receives what pytest prints, None passes it through."""
    started = time.monotonic()
    outcome = _run_pytest(suite, extra, scratch, output=output)
    outcome.seconds = time.monotonic() - started
    return outcome


def repeat_failed(suite: Suite, extra: Sequence[str], scratch: Path, outcome: Outcome) -> None:
    """Run a suite's failed tests once more if they are on real parts; those that pass move from `failed` to `flaky`.

    For when nothing else runs. A test that the repetition does not mention, because it crashed or could not be
    collected, stays failed.
    """
    if not suite.real or outcome.exit_code != 1 or not 0 < len(outcome.failed) <= REPEATED_MAX:
        return
    print(f"\n===== {suite.name}: {len(outcome.failed)} failed, repeated alone =====", flush=True)
    started = time.monotonic()
    again = _run_pytest(suite, [*extra, "--last-failed", "--last-failed-no-failures=none"], scratch, alone=True)
    outcome.seconds += time.monotonic() - started
    if again.exit_code not in (0, 1):
        return
    still = {name for name, _ in again.failed}
    ran = again.passed + len(again.failed)
    if ran < len({name for name, _ in outcome.failed}):
        return
    outcome.flaky = [entry for entry in outcome.failed if entry[0] not in still]
    outcome.failed = [entry for entry in outcome.failed if entry[0] in still]
    outcome.passed += len(outcome.flaky)
    outcome.exit_code = again.exit_code


def _run_pytest(
    suite: Suite, extra: Sequence[str], scratch: Path, *, output: IO[bytes] | None = None, alone: bool = False
) -> Outcome:
    cache = scratch / f"{suite.name}-cache"
    report = scratch / f"{suite.name}{'-repeated' if alone else ''}.xml"
    command = [sys.executable, "-m", "pytest", "-q", *SLOW, f"--junit-xml={report}", "-o", f"cache_dir={cache}"]
    environment = {**os.environ, ALONE: "1"} if alone else None
    code = subprocess.run(
        [*command, *suite.paths, *extra],
        cwd=ROOT,
        check=False,
        env=environment,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
    ).returncode
    outcome = Outcome(suite.name, 0.0, code)
    read_report(report, outcome)
    return outcome


def processor_seconds() -> float:
    """Processor time of all ended child processes so far, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
