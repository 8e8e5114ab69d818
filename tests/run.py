"""Runs every suite and lists failed, flaky and skipped tests with their reasons.

`make test` runs it. Each suite is a pytest run of its own, so that a crash in one cannot hide another. The first suite
that fails does not stop the later ones, so one run shows all failures. With `CI=true` a skipped test counts as a
failure, because there nobody reads the reasons.

The suites of one stage run side by side, the longest first (`tests/durations.json`; `--record` measures), as many as
the processors have room for when one could begin. On a machine that has no Kubernetes yet it is built meanwhile, and
the suites that need it begin when what they need of it is there.

Some suites run when anything they depend on has changed since they passed (`tests/support/recorded.py`): those of the
library and the worker, of the embedded cluster itself, and of what computes for minutes in it. `--all` runs all.
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
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from pathlib import Path

from tests.support.durations import Duration, durations, write_durations
from tests.support.recorded import RECORDED, Recorded
from tests.support.room import has_room
from tests.support.suites import ROOT, Need, Outcome, Suite, repeat_failed, run_suite

REASON_MAX = 1_000
"""Characters of a failure's reason in the summary; the whole of it stands above, in its suite's output."""
PROGRESS_EVERY_S = 60.0
"""Interval of reports on the running suites in a run with several lanes: their output is printed when they end."""

SETTLING_S = 30.0
"""Seconds after the begin of a suite until what it takes of the processors shows, so that another may begin."""
ROOM_EVERY_S = 5.0
"""Seconds between two checks for room."""
AT_ONCE = 3
"""The most suites on real parts at a time: each has moments in which it waits, and then all of them compute."""

UNKNOWN = Duration(seconds=600, processor_seconds=300)
"""The expectation of a suite that nobody has measured."""

BUILDER = ("-m", "tests.support.programs")
"""Arguments of the Python that builds; one more names the folder for its signs of progress."""

Stage = tuple[Suite, ...]

LINT = Suite("lint", (), 150, real=False)
OPERATOR_UNIT = tuple(
    f"tests/unit/{each}" for each in ("reconcilers", "planning", "observe", "runtime", "clients", "api", "chart")
)
"""The operator's part of the unit tests, on the second processor; all others are the suite `unit`."""
STAGES: tuple[Stage, ...] = (
    (
        LINT,
        Suite("unit", ("tests/unit", *(f"--ignore={each}" for each in OPERATOR_UNIT)), 180, real=False),
        Suite("operator", OPERATOR_UNIT, 180, real=False),
        Suite("protocol", ("tests/protocol",), 60, real=False),
        Suite("pythons", ("tests/pythons",), 420, real=False),
    ),
    (
        Suite("apiserver", ("tests/apiserver",), 900, Need.API_SERVER),
        Suite("killed", ("tests/killed",), 720, Need.API_SERVER),
        Suite("operators", ("tests/operators",), 600, Need.API_SERVER),
        Suite("observe", ("tests/observe",), 480),
        Suite("examples", ("tests/examples",), 480),
        Suite("release", ("tests/release",), 480, Need.API_SERVER),
        Suite("broker", ("tests/broker",), 660),
        Suite("worker", ("tests/worker",), 660),
        Suite("retries", ("tests/retries",), 540),
        Suite("faults", ("tests/faults",), 480),
        Suite("spark", ("tests/spark",), 780),
        Suite("interop", ("tests/interop",), 240),
        Suite("monitoring", ("tests/monitoring",), 240, Need.API_SERVER),
        Suite("console", ("tests/console",), 420),
    ),
    # Each alone: pods fill the processors, and they starve whatever runs next to them, or are starved.
    (Suite("e2e", ("e2e", "--ignore=e2e/load", "--ignore=e2e/newcomer"), 1500, Need.CLUSTER),),
    (Suite("load", ("e2e/load",), 2700, Need.CLUSTER),),
    (Suite("newcomer", ("e2e/newcomer",), 1800, Need.CLUSTER),),
    (Suite("cluster", ("tests/local_cluster",), 600, Need.CLUSTER),),
)
SUITES: tuple[Suite, ...] = tuple(suite for stage in STAGES for suite in stage)


class Builds:
    """The build of what some suites need, next to the others. `begin` starts it, `close` interrupts it."""

    def __init__(self, scratch: Path) -> None:
        self._log = scratch / "programs.log"
        self._built = scratch / "built"
        self._started = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        self._built.mkdir()
        command = [sys.executable, *BUILDER, str(self._built)]
        with self._log.open("wb") as output:
            self._started = self._log.stat().st_mtime  # by the same clock as its end
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)

    def has(self, need: Need | None) -> bool:
        """True if a suite with this need may begin: also when nothing more will be built, so that it fails by
        itself."""
        ended = self._process is None or self._process.poll() is not None
        return need is None or ended or (self._built / need).exists()

    def wait(self) -> list[Outcome]:
        """Wait for the end, which counts as one suite; nothing if it was never begun."""
        if self._process is None:
            return []
        code = self._process.wait()
        output = self._log.read_text(errors="replace")
        print(f"\n===== programs (their building began with this run) =====\n{output}", flush=True)
        failed = [("tests.support.programs", output[-REASON_MAX:])] if code else []
        seconds = self._log.stat().st_mtime - self._started  # it says when each step ends
        return [Outcome("programs", seconds, code, passed=int(code == 0), failed=failed)]

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # it ends its compilers with itself
            self._process.wait()


def run_stage(stage: Stage, extra: Sequence[str], scratch: Path, builds: Builds) -> list[Outcome]:
    """Run the suites of a stage side by side, or one with its output passed through; then repeat what failed."""
    if len(stage) == 1:
        while not builds.has(stage[0].need):
            time.sleep(1)
        print(f"\n===== {stage[0].name} (limit {stage[0].limit_s} s) =====", flush=True)
        outcomes = {stage[0]: run_suite(stage[0], extra, scratch)}
    else:
        outcomes = _run_side_by_side(stage, extra, scratch, builds)
    for suite, outcome in outcomes.items():
        repeat_failed(suite, extra, scratch, outcome)
    return list(outcomes.values())


def _run_side_by_side(stage: Stage, extra: Sequence[str], scratch: Path, builds: Builds) -> dict[Suite, Outcome]:
    """The outcomes of the suites in the order of the stage."""
    plan = durations()
    waiting = longest_first(stage, plan)
    progress, begun = _Running(), -math.inf
    running: dict[Suite, Future[Outcome]] = {}
    with ThreadPoolExecutor(len(stage), thread_name_prefix="suite") as pool, progress.reported():
        while True:
            active = [suite for suite, future in running.items() if not future.done()]
            if not waiting and not active:
                break
            room = time.monotonic() - begun >= SETTLING_S and has_room()
            able = [suite for suite in waiting if builds.has(suite.need)]
            suite = next_suite(able, active, plan, room=room)
            if suite is not None:
                waiting.remove(suite)
                begun = time.monotonic()
                running[suite] = pool.submit(_run_aside, suite, extra, scratch, progress)
            elif active:
                wait([running[suite] for suite in active], timeout=ROOM_EVERY_S, return_when=FIRST_COMPLETED)
            else:
                time.sleep(1)  # for what is being built; to wait for no suite would return at once
        return {suite: running[suite].result() for suite in stage}


def longest_first(stage: Stage, plan: Mapping[str, Duration]) -> list[Suite]:
    """The suites in the order in which they begin, if there is room for them."""
    return sorted(stage, key=lambda suite: -plan.get(suite.name, UNKNOWN).seconds)


def next_suite(
    able: Sequence[Suite], active: Collection[Suite], plan: Mapping[str, Duration], *, room: bool
) -> Suite | None:
    """The first of the able suites that can begin next to the active ones; None if it is better to wait.

    Tests with time limits of their own stay true while the processors have `room`: one suite more than that would slow
    all of them. Suites without such limits may use everything, and each uses what it was measured to use.
    """
    free = (os.cpu_count() or 1) - sum(plan.get(suite.name, UNKNOWN).share for suite in active)
    for suite in able:
        fits = room and len(active) < AT_ONCE if suite.real else plan.get(suite.name, UNKNOWN).share <= free
        if not active or fits:
            return suite
    return None


def _run_aside(suite: Suite, extra: Sequence[str], scratch: Path, progress: _Running) -> Outcome:
    log = scratch / f"{suite.name}.log"
    progress.begin(suite)
    with log.open("wb") as output:
        outcome = run_suite(suite, extra, scratch, output)
    progress.end(suite, log)
    return outcome


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


class _Machine:
    """Processor time of the whole machine, of which a suite's processes may be no children."""

    def __init__(self) -> None:
        self._before = self._ticks()

    @staticmethod
    def _ticks() -> tuple[int, int]:
        numbers = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(numbers), numbers[3] + numbers[4]

    def idle_percent(self) -> float:
        """The share of processor time since the beginning that nobody used."""
        every, idle = (now - before for now, before in zip(self._ticks(), self._before, strict=True))
        return 100.0 * idle / max(every, 1)


def chosen_stages(names: Collection[str]) -> list[Stage]:
    """The stages with only the suites of these names; stages without any are left out."""
    stages = [tuple(suite for suite in stage if suite.name in names) for stage in STAGES]
    return [stage for stage in stages if stage]


def run_all(stages: Sequence[Stage], extra: Sequence[str], scratch: Path) -> list[Outcome]:
    """Run the stages in order, and build next to them what their suites need."""
    outcomes: list[Outcome] = []
    with closing(Builds(scratch)) as builds:
        if any(suite.need is not None for stage in stages for suite in stage):
            builds.begin()
        for stage in stages:
            machine, started = _Machine(), time.monotonic()
            outcomes += run_stage(stage, extra, scratch, builds)
            names = " ".join(suite.name for suite in stage)
            seconds = time.monotonic() - started
            print(f"\nstage {names}: {seconds:.0f} s, {machine.idle_percent():.0f} % idle", flush=True)
        return [*builds.wait(), *outcomes]


def verdict(outcomes: Sequence[Outcome], *, ci: bool, notes: Sequence[str] = ()) -> int:
    """Print the table, the flaky and skipped tests, the notes and the closing count; return the exit code."""
    print("\n===== summary =====")
    bad = False
    limits = {suite.name: suite.limit_s for suite in SUITES}
    for outcome in outcomes:
        crashed = outcome.exit_code not in (0, 1) and not outcome.failed
        bad = bad or outcome.exit_code != 0
        used = f", {outcome.duration.processor_seconds:.0f} s of processor time" if outcome.duration else ""
        print(
            f"{outcome.name:<10} {outcome.seconds:6.0f} s  {outcome.passed} passed, {len(outcome.failed)} failed, "
            f"{len(outcome.skipped)} skipped{used}"
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
    for note in notes:
        print(note)
    passed = sum(outcome.passed for outcome in outcomes)
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped", flush=True)
    return 1 if bad else 0


def default_suites(recorded: Sequence[Recorded] = RECORDED) -> tuple[list[str], list[str]]:
    """Names of the suites of a whole run, and notes on what is left out: suites that passed on what is there now."""
    kept = {each.suite for each in recorded if each.passed() == each.found()}
    notes = [
        f"left out: {name}: all that it depends on is as it was when it passed; to run it: "
        f"python -m tests.run --suite {name}"
        for name in sorted(kept)
    ]
    return [suite.name for suite in SUITES if suite.name not in kept], notes


def record_passes(outcomes: Sequence[Outcome], recorded: Sequence[Recorded] = RECORDED) -> list[str]:
    """Write down that suites have passed on what is there now; notes on what to do with it."""
    green = {outcome.name for outcome in outcomes if outcome.exit_code == 0 and outcome.passed}
    notes = []
    for each in recorded:
        if each.suite in green and each.passed() != (found := each.found()):
            each.path.write_text(f"{found}\n")
            notes.append(f"{each.suite} has passed on what is new: commit {each.path} with the change")
    return notes


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.run", description=__doc__.splitlines()[0])
    names = [suite.name for suite in SUITES]
    parser.add_argument("--suite", action="append", choices=names, help="run only this suite; repeatable")
    parser.add_argument("--all", action="store_true", help="also suites that passed on what is there now")
    parser.add_argument("--record", action="store_true", help="write the measured durations to tests/durations.json")
    parser.add_argument("pytest_arguments", nargs="*", help="passed on to pytest, after --")
    options = parser.parse_args(arguments)
    wanted, notes = (options.suite or names, []) if options.suite or options.all else default_suites()
    with tempfile.TemporaryDirectory(prefix="fleet-tests-") as scratch:
        # What killed processes leave behind lies in here, and goes with it.
        os.environ["TMPDIR"] = scratch
        Path(scratch).chmod(0o711)  # a server that does not run as root has its files below it
        outcomes = run_all(chosen_stages(wanted), options.pytest_arguments, Path(scratch))
    if not options.pytest_arguments:
        notes = [*notes, *record_passes(outcomes)]
    if options.record:
        write_durations({outcome.name: outcome.duration for outcome in outcomes if outcome.duration is not None})
    return verdict(outcomes, ci=os.environ.get("CI") == "true", notes=notes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
