"""The runner of the suites: its plan, repetition of failed tests, and what its summary says of them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.run import (
    AT_ONCE,
    SUITES,
    Builds,
    chosen_stages,
    default_suites,
    longest_first,
    next_suite,
    record_passes,
    run_stage,
    verdict,
)
from tests.support.durations import PROCESSOR_SECONDS, Duration, durations, seconds_of_test, write_durations
from tests.support.recorded import RECORDED, ROOT, Recorded, digest, worker_packaging
from tests.support.room import has_room
from tests.support.suites import REPEATED_MAX, Need, Outcome, Suite, repeat_failed, run_suite
from tests.support.waiting import eventually

FAILS_ONCE = """
from pathlib import Path

def test_noisy():
    seen = Path(__file__).with_suffix(".seen")
    first = not seen.exists()
    seen.touch()
    assert not first, "too slow"

def test_steady():
    pass
"""
BUILDS_A_PART = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
(Path(sys.argv[1]) / "api-server").touch()
time.sleep(60)
"""
TOGETHER = """
import threading
from contextlib import contextmanager

import pytest

from tests.support.together import Later

MADE, ENDED = threading.Event(), threading.Event()

@pytest.fixture(scope="session")
def needed():
    MADE.set()

@contextmanager
def slow():
    assert ENDED.wait(5), "made by the test that needs it, while the others run"
    yield "slow"

@pytest.fixture(scope="session")
def later():
    with Later(slow) as made:
        yield made

@pytest.fixture
def shared(later):
    return later.get()

@pytest.mark.together
def test_first(shared):
    assert shared == "slow"

@pytest.mark.together
def test_again(shared):
    assert shared == "slow"

@pytest.mark.together("lane")
@pytest.mark.usefixtures("needed")
def test_second():
    assert MADE.is_set()
    ENDED.set()

@pytest.mark.together("lane")
def test_third():
    assert ENDED.is_set()
"""
"""The first ends only when the second has ended, and what that one needs is there when it begins."""
ALWAYS_FAILS = """
def test_broken():
    assert False, "broken"
"""


def suite_of(folder: Path, text: str, *, real: bool = True, name: str = "sample") -> Suite:
    (folder / f"test_{name}.py").write_text(text)
    return Suite(name, (str(folder),), 10, real=real)


def run_together(folder: Path, at_once: int, *, room: bool) -> None:
    """Write a conftest with which the marked tests of a folder run at the same time."""
    (folder / "conftest.py").write_text(
        "from pathlib import Path\nfrom tests.support.together import play_together\n"
        f"def pytest_configure(config):\n    play_together(config, Path(__file__).parent, {at_once}, lambda: {room})\n"
    )


def run(suite: Suite, folder: Path) -> Outcome:
    with (folder / "output.log").open("wb") as output:
        outcome = run_suite(suite, [], folder, output)
    repeat_failed(suite, [], folder, outcome)
    return outcome


def test_processes_of_tests_keep_the_bytecode_of_their_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    suite = suite_of(tmp_path, "import sys\n\ndef test_kept():\n    assert not sys.dont_write_bytecode\n")
    assert run(suite, tmp_path).passed == 1


def test_a_failed_test_on_real_parts_that_passes_alone_is_flaky(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run(suite_of(tmp_path, FAILS_ONCE), tmp_path)
    assert (outcome.passed, outcome.failed, outcome.exit_code) == (2, [], 0)
    assert [name.rpartition("::")[2] for name, _ in outcome.flaky] == ["test_noisy"]
    assert verdict([outcome], ci=True) == 0
    assert "FLAKY sample" in capsys.readouterr().out


def test_a_test_that_fails_twice_stays_failed(tmp_path: Path) -> None:
    outcome = run(suite_of(tmp_path, FAILS_ONCE + ALWAYS_FAILS), tmp_path)
    assert [name.rpartition("::")[2] for name, _ in outcome.failed] == ["test_broken"]
    assert len(outcome.flaky) == 1
    assert outcome.exit_code == 1
    assert verdict([outcome], ci=True) == 1


def test_failed_test_of_pure_code_is_not_repeated(tmp_path: Path) -> None:
    outcome = run(suite_of(tmp_path, FAILS_ONCE, real=False), tmp_path)
    assert (len(outcome.failed), outcome.flaky, outcome.exit_code) == (1, [], 1)


def test_tests_that_run_together_have_what_they_use_and_a_lane_keeps_its_order(tmp_path: Path) -> None:
    run_together(tmp_path, 1, room=True)
    outcome = run(suite_of(tmp_path, TOGETHER, real=False), tmp_path)
    assert (outcome.passed, outcome.failed) == (4, [])


def test_skipped_test_does_not_run_together_with_others(tmp_path: Path) -> None:
    run_together(tmp_path, 1, room=True)
    text = (
        "import pytest\nfrom pathlib import Path\n\nRAN = Path(__file__).with_suffix('.ran')\n\n"
        "@pytest.mark.together\n@pytest.mark.skipif(True, reason='not here')\n"
        "def test_elsewhere():\n    RAN.touch()\n\n"
        "@pytest.mark.together\ndef test_here():\n    pass\n"
    )
    outcome = run(suite_of(tmp_path, text, real=False), tmp_path)
    assert (outcome.passed, len(outcome.skipped)) == (1, 1)
    assert not list(tmp_path.glob("*.ran"))


def test_many_failures_are_no_noise(tmp_path: Path) -> None:
    many = "".join(f"def test_{number}():\n    assert False\n" for number in range(REPEATED_MAX + 1))
    outcome = run(suite_of(tmp_path, FAILS_ONCE + many), tmp_path)
    assert (len(outcome.failed), outcome.flaky) == (REPEATED_MAX + 2, [])


def test_crashed_suite_fails_the_run(tmp_path: Path) -> None:
    outcome = run(suite_of(tmp_path, "import os\ndef test_crash():\n    os._exit(7)\n"), tmp_path)
    assert outcome.exit_code == 7
    assert verdict([outcome], ci=False) == 1


@pytest.mark.parametrize("room", [False, True])
def test_full_machine_runs_tests_one_by_one_and_a_free_one_several(tmp_path: Path, room: bool) -> None:
    run_together(tmp_path, 2, room=room)
    counts = (
        "import pytest, threading\n\n"
        "HERE, MET = threading.Semaphore(1), threading.Event()\n\n"
        "@pytest.mark.together\n@pytest.mark.parametrize('name', 'ab')\n"
        "def test_one_of_two(name):\n"
        "    if HERE.acquire(blocking=False):\n"
        f"        assert MET.wait(30 if {room} else 1.5) is {room}\n"
        "        HERE.release()\n"
        "    else:\n        MET.set()\n"
    )
    outcome = run(suite_of(tmp_path, counts, real=False), tmp_path)
    assert (outcome.passed, outcome.failed) == (2, [])


def test_pressure_on_the_processors_leaves_no_room(tmp_path: Path) -> None:
    pressure = tmp_path / "cpu"
    pressure.write_text("some avg10=12.50 avg60=95.00 avg300=90.00 total=1\nfull avg10=0.00 avg60=0.00 total=0\n")
    assert has_room(pressure)
    pressure.write_text("some avg10=93.73 avg60=12.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 total=0\n")
    assert not has_room(pressure)


def test_failed_tests_are_repeated_once_the_other_suites_of_the_stage_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine that the other lane still uses would fail them again."""
    monkeypatch.setattr("tests.run.PROGRESS_EVERY_S", 0.01)
    monkeypatch.setattr("tests.run.SETTLING_S", 0.0)
    monkeypatch.setattr("tests.run.has_room", lambda: True)
    busy = tmp_path / "busy"
    (noisy := tmp_path / "noisy").mkdir()
    (slow := tmp_path / "slow").mkdir()
    needs_quiet = f"from pathlib import Path\n\ndef test_noisy():\n    assert not Path({str(busy)!r}).exists()\n"
    takes_long = (
        "import time\nfrom pathlib import Path\n\ndef test_slow():\n"
        f"    while not Path({str(tmp_path / 'noisy.xml')!r}).exists():\n        time.sleep(0.05)\n"
        f"    Path({str(busy)!r}).unlink()\n"
    )
    busy.touch()
    stage = (suite_of(noisy, needs_quiet, name="noisy"), suite_of(slow, takes_long, name="slow"))
    quick, long = run_stage(stage, [], tmp_path, Builds(tmp_path))
    assert (len(quick.flaky), quick.failed, long.failed) == (1, [], [])
    assert "noisy: 1 failed, repeated alone" in capsys.readouterr().out


PLAN = {
    "long": Duration(900, 900),
    "middle": Duration(600, 300),
    "greedy": Duration(500, 750),
    "short": Duration(100, 8),
}


def suites(*names: str) -> list[Suite]:
    return [Suite(name, ("tests/unit",), 10) for name in names]


def test_longest_suites_begin_first_and_the_unmeasured_one_in_the_middle() -> None:
    stage = tuple(suites("short", "new", "middle", "long"))
    assert [suite.name for suite in longest_first(stage, PLAN)] == ["long", "new", "middle", "short"]


def test_suite_begins_when_the_processors_have_room() -> None:
    active = suites("long")
    assert next_suite(suites("greedy", "short"), active, PLAN, room=True) == suites("greedy")[0]
    assert next_suite(suites("greedy"), active, PLAN, room=False) is None
    assert next_suite(suites("greedy"), [], PLAN, room=False) is not None, "whatever it takes, it runs"
    crowd = suites("a", "b", "c")
    assert len(crowd) == AT_ONCE
    assert next_suite(suites("short"), crowd, PLAN, room=True) is None, "each of them may compute at once"


def test_suites_without_time_limits_of_their_own_use_all_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    plan = {name: Duration(100, 100) for name in ("one", "two", "three")}
    one, two, three = (Suite(name, (name,), 60, real=False) for name in plan)
    assert next_suite([two], [one], plan, room=False) == two
    assert next_suite([three], [one, two], plan, room=True) is None


def test_suite_begins_when_what_it_needs_is_built_or_nothing_more_will_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.run.BUILDER", ("-c", BUILDS_A_PART))
    with closing(Builds(tmp_path)) as builds:
        assert builds.has(Need.CLUSTER), "nothing is being built"
        builds.begin()
        assert builds.has(None)
        eventually(lambda: builds.has(Need.API_SERVER), what="the first part to be built")
        assert not builds.has(Need.CLUSTER)
        builds.close()
        assert builds.has(Need.CLUSTER), "its suite fails on its own"
        (outcome,) = builds.wait()
        assert outcome.failed, "an interrupted build"


def test_durations_are_recorded_from_the_report_and_kept_for_suites_that_did_not_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n@pytest.fixture(scope='session', autouse=True)\ndef nearby(record_testsuite_property):\n"
        f"    yield\n    record_testsuite_property({PROCESSOR_SECONDS!r}, 40.4)\n"
    )
    outcome = run(suite_of(tmp_path, "def test_quick():\n    pass\n"), tmp_path)
    assert outcome.duration is not None
    assert 40 <= outcome.duration.processor_seconds < 60, "its own time and what it says of others"
    assert outcome.duration.tests == {}, "short tests are of no interest"
    file = tmp_path / "durations.json"
    write_durations({"sample": outcome.duration, "other": Duration(9, 1, {"tests.x::test_y": 5.0})}, file)
    write_durations({"sample": Duration(7, 2)}, file)
    assert durations(file) == {"sample": Duration(7, 2), "other": Duration(9, 1, {"tests.x::test_y": 5.0})}


def test_recorded_durations_are_of_suites_and_tests_that_exist() -> None:
    recorded = durations()
    assert set(recorded) <= {suite.name for suite in SUITES}
    longest = max(recorded["e2e"].tests.items(), key=lambda entry: entry[1])
    path, _, name = longest[0].partition("::")
    assert seconds_of_test(f"{path.replace('.', '/')}.py::{name}") == longest[1]


def recorded(folder: Path, passed: str = "") -> Recorded:
    """The record of the suite `load` with one input."""
    (folder / "inputs").mkdir(exist_ok=True)
    (folder / "inputs" / "code.py").write_text("one")
    if passed:
        (folder / "passed").write_text(passed)
    return Recorded("load", folder / "passed", (folder / "inputs",), folder)


def test_recorded_suite_runs_when_an_input_has_changed_and_is_named_when_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = recorded(tmp_path).found()
    names, notes = default_suites([recorded(tmp_path, before)])
    assert "load" not in names
    assert not any(suite.name == "load" for stage in chosen_stages(names) for suite in stage)
    assert verdict([], ci=True, notes=notes) == 0
    assert "left out: load:" in capsys.readouterr().out
    (tmp_path / "inputs" / "code.py").write_text("two")
    names, notes = default_suites([Recorded("load", tmp_path / "passed", (tmp_path / "inputs",), tmp_path)])
    assert (set(names), notes) == ({suite.name for suite in SUITES}, [])


def test_green_run_on_changed_inputs_is_recorded_and_a_red_one_is_not(tmp_path: Path) -> None:
    kept = recorded(tmp_path)
    for exit_code, tests in ((1, 8), (0, 0)):
        assert record_passes([Outcome("load", 1.0, exit_code, passed=tests)], [kept]) == []
        assert kept.passed() == ""
    (note,) = record_passes([Outcome("load", 1.0, 0, passed=8)], [kept])
    assert f"commit {kept.path}" in note
    assert kept.passed() == kept.found()
    assert record_passes([Outcome("load", 1.0, 0, passed=8)], [kept]) == []


def test_recorded_suites_and_their_inputs_exist() -> None:
    for each in RECORDED:
        assert each.suite in {suite.name for suite in SUITES}
        assert all(place.exists() for place in each.inputs)


def test_worker_suites_depend_on_the_packaging_of_the_worker_and_not_of_others() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    before = worker_packaging(text)
    assert worker_packaging(text.replace('"kopf>=', '"kopf>')) == before
    assert worker_packaging(text.replace("line-length = 120", "line-length = 100")) == before
    for old in (
        '"confluent-kafka>=',
        'laptop = ["consumer-fleet[consumer]", "PyYAML>',
        'requires-python = ">=',
        'filterwarnings = ["error',
        ".worker.cli:main",
    ):
        assert old in text
        assert worker_packaging(text.replace(old, f"{old[:-1]} {old[-1]}")) != before, old


def test_digest_changes_with_names_and_contents_of_what_matters(tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (sums := tmp_path / "modules" / "go.sum").write_text("one")
    seen = [digest([tmp_path], tmp_path)]
    sums.write_text("two")
    seen.append(digest([tmp_path], tmp_path))
    sums.rename(tmp_path / "modules" / "go.mod")
    seen.append(digest([tmp_path], tmp_path))
    assert len(set(seen)) == 3
    (tmp_path / "README.md").write_text("words")
    (tmp_path / "passed").write_text(seen[-1])
    assert digest([tmp_path], tmp_path) == seen[-1]
