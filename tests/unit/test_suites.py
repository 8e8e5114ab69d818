"""The runner of the suites: repetition of failed tests, and what its summary says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run import run_stage, verdict
from tests.support.suites import REPEATED_MAX, Outcome, Suite, repeat_failed, run_suite

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
TOGETHER = """
import threading

import pytest

MADE, ENDED = threading.Event(), threading.Event()

@pytest.fixture(scope="session")
def needed():
    MADE.set()

@pytest.mark.together
def test_first():
    assert ENDED.wait(5)

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


def run(suite: Suite, folder: Path) -> Outcome:
    with (folder / "output.log").open("wb") as output:
        outcome = run_suite(suite, [], folder, output)
    repeat_failed(suite, [], folder, outcome)
    return outcome


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
    (tmp_path / "conftest.py").write_text(
        "from pathlib import Path\nfrom tests.support.together import play_together\n"
        "def pytest_configure(config):\n    play_together(config, Path(__file__).parent, 1)\n"
    )
    outcome = run(suite_of(tmp_path, TOGETHER, real=False), tmp_path)
    assert (outcome.passed, outcome.failed) == (3, [])


def test_many_failures_are_no_noise(tmp_path: Path) -> None:
    many = "".join(f"def test_{number}():\n    assert False\n" for number in range(REPEATED_MAX + 1))
    outcome = run(suite_of(tmp_path, FAILS_ONCE + many), tmp_path)
    assert (len(outcome.failed), outcome.flaky) == (REPEATED_MAX + 2, [])


def test_crashed_suite_fails_the_run(tmp_path: Path) -> None:
    outcome = run(suite_of(tmp_path, "import os\ndef test_crash():\n    os._exit(7)\n"), tmp_path)
    assert outcome.exit_code == 7
    assert verdict([outcome], ci=False) == 1


def test_failed_tests_are_repeated_once_the_other_suites_of_the_stage_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine that the other lane still uses would fail them again."""
    monkeypatch.setattr("tests.run.PROGRESS_EVERY_S", 0.01)
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
    lanes = ((suite_of(noisy, needs_quiet, name="noisy"),), (suite_of(slow, takes_long, name="slow"),))
    quick, long = run_stage(lanes, [], tmp_path)
    assert (len(quick.flaky), quick.failed, long.failed) == (1, [], [])
    assert "noisy: 1 failed, repeated alone" in capsys.readouterr().out
