"""Runs every suite and lists failed, flaky and skipped tests with their reasons.

`make test` runs it. Each suite is a pytest run of its own, so that a crash in one cannot hide another. The first suite
that fails does not stop the later ones, so one run shows all failures. With `CI=true` a skipped test counts as a
failure, because there nobody reads the reasons.

Suites of one stage that mostly wait run side by side, each lane's suites one after another. On a machine that has no
Kubernetes yet it is built meanwhile; so the suites that need it come last. Beside each other these two let pods take a
minute to start, and wait for everything five.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.suites import ROOT, Outcome, Suite, processor_seconds, repeat_failed, run_suite

REASON_MAX = 1_000
"""Characters of a failure's reason in the summary; the whole of it stands above, in its suite's output."""
PROGRESS_EVERY_S = 60.0
"""Interval of reports on the running suites in a run with several lanes: their output is printed when they end."""

Lane = tuple[Suite, ...]
Stage = tuple[Lane, ...]

STAGES: tuple[Stage, ...] = (
    (
        (Suite("unit", ("tests/unit",), 90, real=False),),
        (Suite("protocol", ("tests/protocol",), 60, real=False),),
    ),
    (
        (
            Suite("broker", ("tests/broker",), 660),
            Suite("spark", ("tests/spark",), 420),
        ),
        (
            Suite("worker", ("tests/worker",), 660),
            Suite("faults", ("tests/faults",), 480),
        ),
        (
            Suite("retries", ("tests/retries",), 540),
            Suite("interop", ("tests/interop",), 240),
        ),
    ),
    (
        (Suite("apiserver", ("tests/apiserver",), 900, kubernetes=True),),
        (Suite("e2e", ("e2e",), 2700, kubernetes=True),),
    ),
)


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
    """The build of what the last suites need, beside the first ones; `log` is its output."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait(self) -> Outcome:
        """Wait for the end; counted as one suite, with the time waited here."""
        print("\n===== programs (their building began with this run) =====", flush=True)
        started = time.monotonic()
        code = self.process.wait()
        output = self.log.read_text(errors="replace")
        print(output, flush=True)
        failed = [("tests.support.programs", output[-REASON_MAX:])] if code else []
        return Outcome("programs", time.monotonic() - started, code, passed=int(code == 0), failed=failed)


@contextmanager
def building(scratch: Path) -> Iterator[Builds]:
    """Start the build; if unfinished at the end, it is interrupted."""
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


def run_stage(stage: Stage, extra: Sequence[str], scratch: Path) -> list[Outcome]:
    """Run the lanes of a stage side by side, one lane with its output passed through; then repeat what failed."""
    if len(stage) == 1:
        outcomes = [_run_aloud(suite, extra, scratch) for suite in stage[0]]
    else:
        running = _Running()
        with ThreadPoolExecutor(len(stage), thread_name_prefix="lane") as pool, running.reported():
            lanes = [pool.submit(_run_lane, lane, extra, scratch, running) for lane in stage]
            outcomes = [outcome for lane in lanes for outcome in lane.result()]
    for suite, outcome in zip((suite for lane in stage for suite in lane), outcomes, strict=True):
        repeat_failed(suite, extra, scratch, outcome)
    return outcomes


def _run_aloud(suite: Suite, extra: Sequence[str], scratch: Path) -> Outcome:
    print(f"\n===== {suite.name} (limit {suite.limit_s} s) =====", flush=True)
    return run_suite(suite, extra, scratch)


def _run_lane(lane: Lane, extra: Sequence[str], scratch: Path, running: _Running) -> list[Outcome]:
    outcomes = []
    for suite in lane:
        log = scratch / f"{suite.name}.log"
        running.begin(suite)
        with log.open("wb") as output:
            outcomes.append(run_suite(suite, extra, scratch, output))
        running.end(suite, log)
    return outcomes


class _Running:
    """The suites that run side by side now; prints what each of them printed when it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: dict[str, float] = {}

    def begin(self, suite: Suite) -> None:
        with self._lock:
            self._begun[suite.name] = time.monotonic()
            print(f"\n===== {suite.name} (limit {suite.limit_s} s): begun, side by side =====", flush=True)

    def end(self, suite: Suite, log: Path) -> None:
        with self._lock:
            seconds = time.monotonic() - self._begun.pop(suite.name)
            print(f"\n===== {suite.name}: its output, after {seconds:.0f} s =====", flush=True)
            print(log.read_text(errors="replace"), flush=True)

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Print a line of progress every minute until the block ends."""
        over = threading.Event()

        def report() -> None:
            while not over.wait(PROGRESS_EVERY_S):
                with self._lock:
                    now = time.monotonic()
                    print("running: " + ", ".join(f"{name} {now - at:.0f} s" for name, at in self._begun.items()))
                    sys.stdout.flush()

        reporter = threading.Thread(target=report, name="progress", daemon=True)
        reporter.start()
        try:
            yield
        finally:
            over.set()
            reporter.join()


def chosen_stages(names: Sequence[str]) -> list[Stage]:
    """The stages with only the suites of these names; stages and lanes without any are left out."""
    lanes = [[tuple(suite for suite in lane if suite.name in names) for lane in stage] for stage in STAGES]
    return [stage for each in lanes if (stage := tuple(lane for lane in each if lane))]


def run_all(stages: Sequence[Stage], extra: Sequence[str], scratch: Path, *, lint: bool) -> list[Outcome]:
    """Run the stages in order; a stage that needs Kubernetes waits until that is built."""
    needs = [any(suite.kubernetes for lane in stage for suite in lane) for stage in stages]
    with ExitStack() as stack:
        builds = stack.enter_context(building(scratch)) if any(needs) else None
        outcomes = [run_lint()] if lint else []
        for stage, kubernetes in zip(stages, needs, strict=True):
            if kubernetes and builds is not None:
                outcomes.append(builds.wait())
                builds = None
            before = processor_seconds()
            started = time.monotonic()
            outcomes += run_stage(stage, extra, scratch)
            names = " ".join(suite.name for lane in stage for suite in lane)
            seconds, used = time.monotonic() - started, processor_seconds() - before
            print(f"\nstage {names}: {seconds:.0f} s, {used:.0f} s of processor time", flush=True)
    return outcomes


def verdict(outcomes: Sequence[Outcome], *, ci: bool) -> int:
    """Print the table, the flaky and skipped tests and the closing count; return the exit code."""
    print("\n===== summary =====")
    bad = False
    limits = {suite.name: suite.limit_s for stage in STAGES for lane in stage for suite in lane}
    for outcome in outcomes:
        crashed = outcome.exit_code not in (0, 1) and not outcome.failed
        bad = bad or outcome.exit_code != 0
        print(
            f"{outcome.name:<10} {outcome.seconds:6.0f} s  {outcome.passed} passed, {len(outcome.failed)} failed, "
            f"{len(outcome.skipped)} skipped"
            + (f"  (exit code {outcome.exit_code})" if crashed else "")
            + (f"  (limit {limit} s)" if outcome.seconds > (limit := limits.get(outcome.name, math.inf)) else "")
        )
    failed = [(outcome.name, *entry) for outcome in outcomes for entry in outcome.failed]
    print("failed: " + ("none" if not failed else ""))
    for suite, name, reason in failed:
        print(f"  {suite}: {name}: {reason[:REASON_MAX]}")
    for outcome in outcomes:
        for name, reason in outcome.flaky:
            print(f"FLAKY {outcome.name}: {name}: failed first, passed alone: {reason[:REASON_MAX]}")
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
    names = [suite.name for stage in STAGES for lane in stage for suite in lane]
    parser = argparse.ArgumentParser(prog="python -m tests.run", description=__doc__.splitlines()[0])
    parser.add_argument("--suite", action="append", choices=["lint", *names], help="run only this suite; repeatable")
    parser.add_argument("pytest_arguments", nargs="*", help="passed on to pytest, after --")
    options = parser.parse_args(arguments)
    wanted = options.suite or ["lint", *names]
    with tempfile.TemporaryDirectory(prefix="fleet-tests-") as scratch:
        # What killed processes leave behind lies in here, and goes with it.
        os.environ["TMPDIR"] = scratch
        outcomes = run_all(chosen_stages(wanted), options.pytest_arguments, Path(scratch), lint="lint" in wanted)
    return verdict(outcomes, ci=os.environ.get("CI") == "true")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
