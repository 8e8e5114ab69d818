"""Runs every suite, and ends with what failed, what was skipped, and why.

`make test` is this. Each suite is a pytest run of its own, so that a crash in one cannot hide another. The first
suite that fails does not stop the later ones: a person gets the whole picture from one run. With `CI=true` a skipped
test counts as a failure, because there nobody reads the reasons.

On a machine that has no Kubernetes yet it is built meanwhile; so the suites that need it come last.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REASON_MAX = 1_000
"""Characters of a failure's reason in the summary; the whole of it stands above, in its suite's output."""


@dataclass(frozen=True, slots=True)
class Suite:
    """One pytest run: its name, its folder or files, and its limit on two cores (quality targets, in seconds)."""

    name: str
    paths: tuple[str, ...]
    limit_s: int
    kubernetes: bool = False
    """Whether it needs what `tests.support.programs` builds."""


SUITES: tuple[Suite, ...] = (
    Suite("unit", ("tests/unit",), 60),
    Suite("protocol", ("tests/protocol",), 60),
    Suite("interop", ("tests/interop",), 150),
    Suite("broker", ("tests/broker",), 360),
    Suite("faults", ("tests/faults",), 300),
    Suite("retries", ("tests/retries",), 300),
    Suite("apiserver", ("tests/apiserver",), 240, kubernetes=True),
    Suite("e2e", ("e2e",), 900, kubernetes=True),
)
SLOW = ("--durations=10", "--durations-min=5")
"""Each suite ends with its slowest tests: where a run's time went is seen without another run."""


@dataclass(slots=True)
class Outcome:
    """What one suite's run came to; `failed` and `skipped` pair a test's name with its reason."""

    name: str
    seconds: float
    exit_code: int
    passed: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def read_report(path: Path, outcome: Outcome) -> None:
    """Add the counts of a JUnit XML report to `outcome`; a report that is missing leaves them at zero."""
    if not path.exists():
        return
    for case in ElementTree.parse(path).getroot().iter("testcase"):
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


def run_suite(suite: Suite, extra: Sequence[str], reports: Path) -> Outcome:
    """Run one suite with its output passed through."""
    print(f"\n===== {suite.name} (limit {suite.limit_s} s) =====", flush=True)
    report = reports / f"{suite.name}.xml"
    started = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", *SLOW, f"--junit-xml={report}", *suite.paths, *extra]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    outcome = Outcome(suite.name, time.monotonic() - started, code)
    read_report(report, outcome)
    return outcome


def run_lint() -> Outcome:
    """The checks of `make lint`, counted as one suite."""
    print("===== lint =====", flush=True)
    started = time.monotonic()
    checks = (
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy"],
        ["lint-imports"],
    )
    outcome = Outcome("lint", 0.0, 0)
    for check in checks:
        code = subprocess.run(
            [str(Path(sys.executable).parent / check[0]), *check[1:]], cwd=ROOT, check=False
        ).returncode
        outcome.exit_code = outcome.exit_code or code
        outcome.passed += code == 0
        if code:
            outcome.failed.append((" ".join(check), f"exit code {code}"))
    outcome.seconds = time.monotonic() - started
    return outcome


@dataclass(slots=True)
class Builds:
    """The building of what the last suites need, beside the first ones; `log` is what it tells of itself."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait(self) -> Outcome:
        """Until all is built; counted as one suite, with the time that had to be waited here."""
        print("\n===== programs (their building began with this run) =====", flush=True)
        started = time.monotonic()
        code = self.process.wait()
        told = self.log.read_text(errors="replace")
        print(told, flush=True)
        failed = [("tests.support.programs", told[-REASON_MAX:])] if code else []
        return Outcome("programs", time.monotonic() - started, code, passed=int(code == 0), failed=failed)


@contextmanager
def building(scratch: Path) -> Iterator[Builds]:
    """Start it; what is not finished at the end is broken off."""
    log = scratch / "programs.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.programs"], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield Builds(process, log)
    finally:
        process.send_signal(signal.SIGINT)  # it ends its compilers with itself
        process.wait()


def run_all(suites: Sequence[Suite], extra: Sequence[str], scratch: Path, *, lint: bool) -> list[Outcome]:
    """Everything that was asked for, one after another; what needs Kubernetes when that is built."""
    with ExitStack() as stack:
        builds = stack.enter_context(building(scratch)) if any(suite.kubernetes for suite in suites) else None
        outcomes = [run_lint()] if lint else []
        for suite in suites:
            if suite.kubernetes and builds is not None:
                outcomes.append(builds.wait())
                builds = None
            outcomes.append(run_suite(suite, extra, scratch))
    return outcomes


def verdict(outcomes: Sequence[Outcome], *, ci: bool) -> int:
    """Print the table, the skipped tests and the closing count; return the exit code."""
    print("\n===== summary =====")
    bad = False
    for outcome in outcomes:
        crashed = outcome.exit_code not in (0, 1) and not outcome.failed
        bad = bad or outcome.exit_code != 0
        print(
            f"{outcome.name:<10} {outcome.seconds:6.0f} s  {outcome.passed} passed, {len(outcome.failed)} failed, "
            f"{len(outcome.skipped)} skipped" + (f"  (exit code {outcome.exit_code})" if crashed else "")
        )
    failed = [(outcome.name, *entry) for outcome in outcomes for entry in outcome.failed]
    print("failed: " + ("none" if not failed else ""))
    for suite, name, reason in failed:
        print(f"  {suite}: {name}: {reason[:REASON_MAX]}")
    skipped = [(outcome.name, *entry) for outcome in outcomes for entry in outcome.skipped]
    print("skipped: " + ("none" if not skipped else ""))
    for suite, name, reason in skipped:
        print(f"  {suite}: {name}: {reason}")
    if skipped and ci:
        print("CI=true: a skipped test is a failure")
        bad = True
    passed = sum(outcome.passed for outcome in outcomes)
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped", flush=True)
    return 1 if bad else 0


def main(arguments: Sequence[str]) -> int:
    names = [suite.name for suite in SUITES]
    parser = argparse.ArgumentParser(prog="python -m tests.run", description=__doc__.splitlines()[0])
    parser.add_argument("--suite", action="append", choices=["lint", *names], help="run only this suite; repeatable")
    parser.add_argument("pytest_arguments", nargs="*", help="passed on to pytest, after --")
    options = parser.parse_args(arguments)
    wanted = options.suite or ["lint", *names]
    with tempfile.TemporaryDirectory(prefix="fleet-tests-") as scratch:
        # What killed processes leave behind lies in here, and goes with it.
        os.environ["TMPDIR"] = scratch
        chosen = [suite for suite in SUITES if suite.name in wanted]
        outcomes = run_all(chosen, options.pytest_arguments, Path(scratch), lint="lint" in wanted)
    return verdict(outcomes, ci=os.environ.get("CI") == "true")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
