"""The files that a recorded suite depends on: its own, and all that these import."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import waiting
from tests.support.inputs import files_behind
from tests.support.recorded import ROOT, WORKERS, Recorded, digest

PACKAGE = ROOT / "operator" / "fleet_operator"
CONNECTION = {PACKAGE / "__init__.py", PACKAGE / "observe" / "__init__.py", PACKAGE / "observe" / "subscriptions.py"}
"""Modules of the operator that a test of secured connections needs."""


def names(*folders: Path) -> set[str]:
    return {str(each.relative_to(ROOT)) for each in files_behind(*folders) if each.is_relative_to(ROOT)}


def test_imports_are_followed_into_helpers_and_into_the_operator(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(
        "import os\nfrom fleet_consumer import Produce\nfrom tests.support import waiting\n\n"
        "def test_late():\n    from fleet_operator.planning.backfill.manifests import SECURE\n"
    )
    assert tmp_path / "test_sample.py" in files_behind(tmp_path)
    found = names(tmp_path)
    assert {"tests/support/waiting.py", "operator/fleet_operator/planning/backfill/manifests.py"} <= found
    assert not any(each.startswith("consumer_image/") for each in found), "a suite has it as a whole"
    assert "tests/support/kafka.py" not in found, "nothing here imports it"


def test_modules_that_run_as_processes_and_files_of_helpers_that_are_not_python_count(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text('COMMAND = ["python", "-m", "tests.support.foreign"]\n')
    found = names(tmp_path)
    assert {"tests/support/foreign.py", "tests/support/JavaMember.java"} <= found
    assert {"e2e/local_cluster/versions.py", "e2e/local_cluster/modules/kafka/pom.xml"} <= found


@pytest.mark.parametrize("suite", WORKERS, ids=[each.suite for each in WORKERS])
def test_suites_of_the_worker_depend_on_its_image_and_on_their_own_files(suite: Recorded) -> None:
    inputs = set(suite.inputs)
    locks = {ROOT / "requirements" / f"{name}.txt" for name in ("consumer", "spark", "dev")}
    assert {ROOT / "consumer_image", *locks} <= inputs
    assert "confluent-kafka" in suite.packaging
    assert set((ROOT / "tests" / suite.suite).glob("*.py")) <= inputs


@pytest.mark.parametrize("suite", ["protocol", "broker", "worker", "retries", "faults", "interop"])
def test_suites_with_brokers_do_not_depend_on_the_operator(suite: str) -> None:
    """A change of the operator would run them all again; tests of both are in the suite `observe`."""
    (found,) = (each for each in WORKERS if each.suite == suite)
    assert {each for each in found.inputs if each.is_relative_to(PACKAGE)} <= CONNECTION


def test_bytecode_is_no_input() -> None:
    """It is there after the first run only, and would make every pass seem old."""
    assert Path(waiting.__file__).with_name("__pycache__").is_dir()
    assert not [each for suite in WORKERS for each in suite.inputs if "__pycache__" in each.parts]


def test_page_that_tests_read_counts_and_others_do_not(tmp_path: Path) -> None:
    (page := tmp_path / "page.md").write_text("one")
    named, around = digest([page], tmp_path), digest([tmp_path], tmp_path)
    page.write_text("two")
    assert digest([page], tmp_path) != named
    assert digest([tmp_path], tmp_path) == around
