"""The runs on older versions of Kafka: what they name exists, and a test that must fail may not pass."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.local_cluster import versions
from tests.support.suites import Outcome
from tests.versions.lanes import LANES, SHORT, WHOLE, reason_to_fail, table
from tests.versions.pins import VARIABLE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "versions.md").read_text()
RUN_S = 120


def test_tests_that_must_fail_exist() -> None:
    for name in sorted({name for tests in LANES.values() for name in tests}):
        file, _, test = name.partition("::")
        source = (ROOT / "tests/broker" / file).read_text()
        function = test.partition("[")[0]
        assert re.search(rf"^(?:async )?def {function}\(", source, re.MULTILINE), name


def test_files_exist() -> None:
    assert [path for path in (*SHORT, *WHOLE) if not (ROOT / path).exists()] == []


def test_reason_applies_to_one_test_on_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LANES, "3.0.0", {"test_a.py::test_new[one]": "Kafka 4"})
    assert reason_to_fail("3.0.0", "tests/broker/test_a.py::test_new[one]") == "Kafka 4"
    assert reason_to_fail("3.0.0", "tests/broker/test_a.py::test_new[two]") is None
    assert reason_to_fail("4.3.1", "tests/broker/test_a.py::test_new[one]") is None


def test_table_has_a_row_for_each_version_and_names_what_failed() -> None:
    found = Outcome("kafka", 61.4, 1, passed=1_204, failed=[("test_x", "broke\nhere")], skipped=[("test_y", "KIP-848")])
    assert list(table({"3.9.2": found}))[2:] == [
        "| 3.9.2 | 1,204 | 1 | 1 | 61 |",
        "3.9.2 FAILED: test_x: broke",
        "3.9.2 needs newer: test_y: KIP-848",
    ]


@pytest.mark.parametrize(("body", "code"), [("assert False", 0), ("pass", 1)])
def test_test_that_must_fail_and_passes_fails_the_run(tmp_path: Path, body: str, code: int) -> None:
    """With the plugin itself, in a process whose version has this one test on its list."""
    (tmp_path / "test_a.py").write_text(f"def test_new():\n    {body}\n")
    (tmp_path / "listed.py").write_text(
        "from tests.versions import lanes\nlanes.LANES['3.0.0'] = {'test_a.py::test_new': 'Kafka 4'}\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "listed", "-p", "tests.versions.pins", "test_a.py"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={VARIABLE: "3.0.0", "PYTHONPATH": f"{ROOT}:{tmp_path}:{ROOT}/operator:{ROOT}/consumer_image"},
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    assert done.returncode == code, done.stdout + done.stderr


def test_page_names_the_versions_that_are_tested() -> None:
    rows = {(software, version) for software, version in re.findall(r"^\| (\w+) \| ([\d., ]+) \|", PAGE, re.MULTILINE)}
    pinned = {"Kafka": versions.KAFKA, "Kubernetes": versions.KUBERNETES, "Spark": versions.SPARK}
    for software, version in (*pinned.items(), *(("Kafka", each) for each in LANES)):
        assert (software, version.rpartition(".")[0]) in rows
    assert all(f" on {version} |" in PAGE for version in pinned.values())
    assert all(f"`python -m tests.versions --kafka {version}`" in PAGE for version in LANES)
    assert ("Kubernetes", "1.33, 1.34") in rows
    assert 'kubeVersion: ">=1.33.0-0"' in (ROOT / "charts/consumer-fleet/Chart.yaml").read_text()


def test_recorded_result_has_the_number_of_tests_that_need_a_newer_version() -> None:
    for version, newer in re.findall(r"^\| ([\d.]+) \| [\d-]+ \|.* \| (\d+) \|$", PAGE, re.MULTILINE):
        assert int(newer) == len(LANES[version])
