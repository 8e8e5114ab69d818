"""Handlers that fork: the child ends, and what it shares with the task still tells what the parent has in hand."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os, sys, tempfile
from types import SimpleNamespace
from fleet_consumer.backfill.calling import Batches, OneByOne
from fleet_consumer.backfill.marks import Marks
from fleet_consumer.clock import SystemClock
from fleet_consumer.handlers.performing import Outputs, Result
from fleet_consumer.record import Record

file = tempfile.TemporaryFile()
marks = Marks(file.fileno(), 1)
held = []

def fork(records):
    if not held and (child := os.fork()):
        os.waitpid(child, 0)
        held.append(len(marks.read()))
    return [Result() for _ in records]

batches = Batches(fork, 500, marks)
singles = OneByOne(SimpleNamespace(call=lambda record: fork([record]) and None), (None, None), Outputs(), marks,
    SystemClock())
records = [Record("t", 0, offset, 0, None, b"", (), -1) for offset in range(10)]
answers = {"batches": batches, "singles": singles}[sys.argv[1]].handle(records, float("inf"), lambda error: False)
os.write(1, f"{len(answers)} answers, {held} in hand behind the child; ".encode())
"""


@pytest.mark.parametrize("caller", ["singles", "batches"])
def test_child_of_a_handler_handles_nothing_more_and_takes_no_mark_away(caller: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, caller], capture_output=True, text=True, timeout=30)
    assert done.stdout == "10 answers, [1] in hand behind the child; ", done.stderr
