"""The driver's process up to its session: settings are tried first, and say why they are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleet_consumer.backfill.api_server import API_URL, ApiFailed
from fleet_consumer.backfill.cli import check, main, problem_of
from fleet_consumer.backfill.errors import BackfillFailed, Superseded
from fleet_consumer.contract.backfill_config import parse_config
from fleet_consumer.contract.backfill_ledger import LEDGER_KEY, Ledger, ledger_text
from fleet_consumer.contract.pod import EXIT_SETTINGS, EXIT_SUPERSEDED
from fleet_consumer.contract.section import SettingsInvalid
from tests.support.config_map_server import ConfigMapServer
from tests.unit.backfill.documents import backfill_document, compare_section
from tests.unit.worker.documents import worker_document


def run(folder: Path, capsys: pytest.CaptureFixture[str], **changes: Any) -> tuple[int, dict[str, Any]]:
    (folder / "backfill.json").write_text(json.dumps(backfill_document(**changes)))
    code = main(["--config", str(folder / "backfill.json"), "--attempt", "2"])
    return code, json.loads(capsys.readouterr().out.strip().splitlines()[-1])


def test_broken_settings_and_missing_files_end_with_code_20(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = run(tmp_path, capsys, ordering="Some")
    assert (code, result["ok"], result["reason"]) == (EXIT_SETTINGS, False, "SettingsInvalid")
    assert "ordering" in result["message"]
    assert main(["--config", str(tmp_path / "none.json"), "--attempt", "1"]) == EXIT_SETTINGS


def test_newer_attempt_ends_with_code_22(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And imports no handler before, nor at all: its process holds a token."""
    (tmp_path / "one_of_tests.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef handle(record): ...\n")
    worker = worker_document()
    worker["handler"]["python"] = {"callable": "one_of_tests:handle", "path": str(tmp_path)}
    monkeypatch.syspath_prepend(str(tmp_path))
    with ConfigMapServer() as server:
        server.put("again-ledger", {LEDGER_KEY: ledger_text(Ledger(attempt=3, remaining={}))})
        monkeypatch.setenv(API_URL, server.url)
        code, result = run(tmp_path, capsys, worker=worker)
        assert (code, result["reason"]) == (EXIT_SUPERSEDED, "Superseded")
        server.put("again-ledger", {LEDGER_KEY: "{}"})
        code, result = run(tmp_path, capsys, worker=worker)
        assert (code, result["reason"]) == (EXIT_SETTINGS, "SettingsInvalid")
        assert server.data("again-ledger") == {LEDGER_KEY: "{}"}
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sink": {"topic": "flights", "parquet": None}}, "of the live group"),
        ({"sink": {"topic": "flights-done", "parquet": None}}, "of the live group"),
        ({"sink": {"topic": "other", "parquet": None}, "compare": compare_section()}, "differences"),
        ({"compare": compare_section("Live")}, "is missing"),
    ],
)
def test_settings_that_no_driver_can_run(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsInvalid, match=said):
        check(parse_config(backfill_document(**changes)))


def test_settings_that_drivers_run() -> None:
    for changes in ({"sink": {"topic": "other", "parquet": None}}, {"compare": compare_section()}, {}):
        check(parse_config(backfill_document(**changes)))


@pytest.mark.parametrize(
    ("error", "reason", "final"),
    [
        (SettingsInvalid("a", "b"), "SettingsInvalid", True),
        (BackfillFailed("RangeExpired", "x", final=True), "RangeExpired", True),
        (BackfillFailed("SliceFailed", "x", final=False), "SliceFailed", False),
        (ApiFailed("x"), "ApiServerFailed", False),
        (Superseded("x"), "Superseded", False),
        (KeyError("x" * 9_999), "DriverFailed", False),
    ],
)
def test_problems(error: Exception, reason: str, final: bool) -> None:
    problem = problem_of(error)
    assert (problem.reason, problem.final) == (reason, final)
    assert len(problem.message) < 2_100
