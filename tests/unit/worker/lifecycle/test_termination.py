"""A process that has to end ends, also where nothing can be written any more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fleet_consumer.worker.lifecycle import termination
from fleet_consumer.worker.lifecycle.termination import EXIT_HUNG, NOT_DRAINED, end_process
from tests.unit.worker.documents import changed, worker_document


class Ended(BaseException):
    """The process's end."""


class ClosedStream:
    """A standard error that nobody reads."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        raise BrokenPipeError("nobody reads")


@pytest.fixture
def message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The termination message of a process whose end raises `Ended` with the exit code."""
    path = tmp_path / "termination-log"
    path.touch()

    def ends(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", ends)
    monkeypatch.setattr(termination.write_termination, "__defaults__", (path,))
    return path


def test_forced_end_leaves_its_reason(message: Path) -> None:
    with pytest.raises(Ended) as ended:
        end_process(NOT_DRAINED, {"call": "teardown"})
    assert ended.value.args == (EXIT_HUNG,)
    assert json.loads(message.read_text()) == {
        "ok": False,
        "reason": "HandlerTimeout",
        "message": "the handler did not return within the drain timeout: {'call': 'teardown'}",
        "records": [],
    }


def test_process_ends_on_a_full_disk(message: Path) -> None:
    message.unlink()
    message.symlink_to("/dev/full")
    with pytest.raises(Ended) as ended:
        end_process(NOT_DRAINED, {})
    assert ended.value.args == (EXIT_HUNG,)


def test_process_ends_when_nobody_reads_its_errors(message: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", ClosedStream())
    with pytest.raises(Ended) as ended:
        end_process(NOT_DRAINED, {})
    assert ended.value.args == (EXIT_HUNG,)


@pytest.mark.parametrize(
    "kept",
    ["threading.Thread(target=threading.Event().wait).start()", "atexit.register(threading.Event().wait)"],
    ids=["a thread that is no daemon", "an exit function that hangs"],
)
def test_application_cannot_keep_a_process_whose_work_is_done(kept: str) -> None:
    program = f"""
        import atexit, threading
        from fleet_consumer.worker.lifecycle.termination import bound_exit
        {kept}
        print("done")
        bound_exit(21, 0.2)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (21, b"done\n")


def test_check_ends_though_the_handlers_module_has_started_a_thread(tmp_path: Path) -> None:
    """The Job of the check did not end, so its fleet waited until the Job's deadline."""
    (tmp_path / "stock.py").write_text("import threading\nthreading.Thread(target=threading.Event().wait).start()\n")
    python = {"callable": "stock:handle", "path": str(tmp_path)}
    document = changed(worker_document(), "handler.python", python)
    (tmp_path / "worker.json").write_text(json.dumps(document))
    program = f"""
        import sys
        from fleet_consumer.worker import cli
        from fleet_consumer.worker.lifecycle import termination
        termination.bound_exit.__defaults__ = (0.2,)
        sys.argv = ["fleet-consumer", "check", "--config", {str(tmp_path / "worker.json")!r}]
        sys.exit(cli.main())
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, timeout=60)
    assert ended.returncode == 20
    assert b"HandlerNotCallable" in ended.stdout
