"""Handlers that fork: the child exits, and the call slots that it shares still have the parent's records."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, tempfile
from types import SimpleNamespace
from fleet_consumer.backfill.call_slots import CallSlots
from fleet_consumer.backfill.calling import Batches, OneByOne
from fleet_consumer.clock import SystemClock
from fleet_consumer.handlers.performing import Outputs, Result
from fleet_consumer.record import Record

file = tempfile.TemporaryFile()
call_slots = CallSlots(file.fileno(), 1, 500)
held = []

def fork(records):
    if not held and (child := os.fork()):
        os.waitpid(child, 0)
        held.append(len(call_slots.active_calls()))
    return [Result() for _ in records]

batches = Batches(fork, 500, call_slots)
handler = SimpleNamespace(call=lambda record: fork([record]) and None)
singles = OneByOne(handler, (None, None), Outputs(), call_slots, SystemClock())
records = [Record("t", 0, offset, 0, None, b"", (), -1) for offset in range(10)]
answers = {"batches": batches, "singles": singles}[sys.argv[1]].handle(records, float("inf"), lambda error: False)
os.write(1, f"{len(answers)} answers, {held} in hand after the child; ".encode())
"""

HOOKS = """
import os
def fork(context):
    if child := os.fork():
        os.waitpid(child, 0)
def handle(record): ...
setup = teardown = fork
"""

SERVED = """
import json, os, sys, tempfile
from fleet_consumer.backfill.call_slots import CallSlots
from fleet_consumer.backfill.process import HandlerServer
from fleet_consumer.backfill.work import config_of
from tests.unit.backfill.documents import backfill_document
from tests.unit.worker.documents import worker_document

worker = worker_document()
worker["handler"] |= {"python": {"callable": "handler:handle", "path": sys.argv[1]}, "concurrency": 1}
file = tempfile.TemporaryFile()
config = config_of(json.dumps(backfill_document(worker=worker)))
server = HandlerServer(config, "Live", CallSlots(file.fileno(), 1, 500))
os.write(1, b"set up; ")
server.tear_down()
os.write(1, b"torn down; ")
"""


def run(script: str, argument: str) -> subprocess.CompletedProcess[str]:
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, argument]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, env=path, check=False)


def test_child_of_a_hook_is_no_second_process_of_the_handler(tmp_path: Path) -> None:
    """It would read requests from the same connection."""
    (tmp_path / "handler.py").write_text(HOOKS)
    done = run(SERVED, str(tmp_path))
    assert done.stdout == "set up; torn down; ", done.stderr


@pytest.mark.parametrize("caller", ["singles", "batches"])
def test_child_of_a_handler_handles_nothing_more_and_releases_no_slot(caller: str) -> None:
    done = run(SCRIPT, caller)
    assert done.stdout == "10 answers, [1] in hand after the child; ", done.stderr
