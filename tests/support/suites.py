"""Suites: one pytest run each or the linters, their outcomes, and the repetition of a failed test on its own.

A test on real parts shares the machine with brokers, clusters and other tests. If it fails, it is repeated alone, after
the other suites of its stage. If it then passes, the run is green and reports the test as flaky: the next thing to fix.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO

from e2e.local_cluster.cache import fleet_home
from tests.support.durations import Duration, case_name, read_duration
from tests.support.together import ALONE

ROOT = Path(__file__).resolve().parents[2]
REPEATED_MAX = 8
"""The most failed tests of one suite that are repeated. More are not noise, and repeating them takes long."""
CHECKS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy", f"--cache-dir={fleet_home() / 'mypy'}"),
    ("lint-imports",),
)
"""The commands of the suite `lint` in place of pytest, as `make lint` runs them. mypy compares contents: the next clone
on this machine checks only what has changed."""
SLOW = ("--durations=10", "--durations-min=5")
"""Each suite ends with its slowest tests, which shows where a run's time went."""


class Need(StrEnum):
    """Programs that must be built before a suite begins; a later need includes the earlier ones."""

    API_SERVER = "api-server"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Suite:
    """One pytest run: its name, its folder, and its limit on two cores (quality targets, in seconds).

    `need`: programs to build before it starts. `real`: it runs on brokers, servers or clusters, so its failed tests are
    repeated. Without a folder it is the linters' run.
    """

    name: str
    paths: tuple[str, ...]
    limit_s: int
    need: Need | None = None
    real: bool = True


@dataclass(slots=True)
class Outcome:
    """The result of one suite's run. `failed`, `flaky` and `skipped` pair a test's name with its reason.

    `duration` is that of the first run, to plan later ones; None without a report.
    """

    name: str
    seconds: float
    exit_code: int
    passed: int = 0
    duration: Duration | None = None
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
        name = case_name(case)
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
    """Run one suite and return the result; `output` receives what it prints, None passes it through."""
    return _run_pytest(suite, extra, scratch, output=output) if suite.paths else _run_lint(suite.name, output)


def _run_lint(name: str, output: IO[bytes] | None) -> Outcome:
    """The linters; each counts as one test."""
    outcome = Outcome(name, 0.0, 0)
    used = 0.0
    for check in CHECKS:
        code, seconds, processor_seconds = _run([str(Path(sys.executable).parent / check[0]), *check[1:]], output)
        outcome.seconds += seconds
        used += processor_seconds
        outcome.exit_code = outcome.exit_code or code
        outcome.passed += code == 0
        if code:
            outcome.failed.append((" ".join(check), f"exit code {code}"))
    outcome.duration = Duration(round(outcome.seconds), round(used))
    return outcome


def repeat_failed(suite: Suite, extra: Sequence[str], scratch: Path, outcome: Outcome) -> None:
    """Run a suite's failed tests once more if they are on real parts; those that pass move from `failed` to `flaky`.

    Call it while nothing else runs. A test that the repetition does not report, because it crashed or could not be
    collected, stays failed.
    """
    if not suite.real or outcome.exit_code != 1 or not 0 < len(outcome.failed) <= REPEATED_MAX:
        return
    print(f"\n===== {suite.name}: {len(outcome.failed)} failed, repeated alone =====", flush=True)
    again = _run_pytest(suite, [*extra, "--last-failed", "--last-failed-no-failures=none"], scratch, alone=True)
    outcome.seconds += again.seconds
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
    # Hundreds of workers and operators start here; each would compile all of its modules.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {ALONE: "1"} if alone else {}
    code, seconds, processor_seconds = _run([*command, *suite.paths, *extra], output, environment)
    outcome = Outcome(suite.name, seconds, code)
    read_report(report, outcome)
    if outcome.passed:
        outcome.duration = read_duration(report, seconds=seconds, processor_seconds=processor_seconds)
    return outcome


def _run(
    command: Sequence[str], output: IO[bytes] | None, environment: Mapping[str, str] | None = None
) -> tuple[int, float, float]:
    """Run a command; return its exit code, its wall time, and its and its children's processor time."""
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, time.monotonic() - started, usage.ru_utime + usage.ru_stime
