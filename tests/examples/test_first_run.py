"""`make try`: its totals add up, also after a worker's death, and Ctrl-C leaves no process and no file."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from e2e.demo import inside
from tests.support.waiting import eventually

pytestmark = pytest.mark.together

ROOT = Path(__file__).resolve().parents[2]
RUN_S = 600.0


class Run:
    """A run in a session of its own, like that of a terminal, with all that it prints."""

    def __init__(self, printed: Path, *options: str) -> None:
        self._printed = printed
        with printed.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-m", "e2e.laptop", *options],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def printed(self) -> str:
        return self._printed.read_text()

    def wait_printed(self, pattern: str) -> re.Match[str]:
        def found() -> re.Match[str] | None:
            text = self.printed()
            seen = re.search(pattern, text)
            assert seen or self.process.poll() is None, text
            return seen

        seen = eventually(found, what=pattern, timeout_s=RUN_S, poll_s=0.02)
        assert seen is not None
        return seen

    def interrupt(self) -> None:
        """Ctrl-C in the terminal, which signals the whole foreground process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def ends(self) -> int:
        return self.process.wait(RUN_S)

    def leftovers(self) -> list[str]:
        """The folder of the run, if it is still there, and the commands of processes that name it."""
        folder = re.search(r"/tmp\S*/fleet-try-\w+", self.printed())
        assert folder, self.printed()
        return [*processes_of(folder[0]), *([folder[0]] if Path(folder[0]).exists() else [])]


def processes_of(folder: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue  # it ended meanwhile
        found += [command] if folder in command else []
    return found


@contextmanager
def running(folder: Path, *options: str) -> Iterator[Run]:
    run = Run(folder / "printed.txt", *options)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.terminate()
            run.process.wait(60)


def test_totals_add_up_and_printed_commands_work_until_ctrl_c(tmp_path: Path) -> None:
    with running(tmp_path, "--keep") as run:
        run.wait_printed("The broker runs until Ctrl-C")
        (counting,) = [line for line in run.printed().splitlines()[-5:] if " count --topic" in line]
        counted = subprocess.run(shlex.split(counting), cwd=ROOT, capture_output=True, text=True, check=True)
        assert json.loads(counted.stdout)["done"] == 10_000
        run.interrupt()
        assert run.ends() == 0, run.printed()
        assert run.leftovers() == []
    assert "\ntry: in=10000 done=9942 failed=58 lost=0 duplicated=0\n" in run.printed()
    assert "\ntry, redriven: in=10000 done=10000 failed=0 lost=0 duplicated=0\n" in run.printed()
    assert re.search(r"kr-error-message: cancelled: \w+", run.printed()), "a failed record is shown"


def test_totals_add_up_although_a_worker_is_killed_meanwhile(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        victim = int(run.wait_printed(r"worker 1: process (\d+)\n")[1])
        bootstrap = run.wait_printed(r"--bootstrap (\S+) produce")[1]
        eventually(lambda: outputs(bootstrap) > 0, what="the first outputs", poll_s=0.02)
        os.kill(victim, signal.SIGKILL)
        assert outputs(bootstrap) < 9942, "the worker outlived the flights: nothing was interrupted"
        assert run.ends() == 0, run.printed()
        assert run.leftovers() == []
    assert "worker 1 has ended" in run.printed()
    assert "\ntry: in=10000 done=9942 failed=58 lost=0 " in run.printed()
    assert "\ntry, redriven: in=10000 done=10000 failed=0 lost=0 " in run.printed()


@pytest.mark.parametrize("moment", [r"create-topics", r"worker 2: process", r"handled: all flights"])
def test_ctrl_c_leaves_no_process_and_no_file(tmp_path: Path, moment: str) -> None:
    with running(tmp_path) as run:
        run.wait_printed(moment)
        run.wait_printed(r"(/tmp\S*/fleet-try-\w+)")
        run.interrupt()
        assert run.ends() == 130, run.printed()
        assert eventually(lambda: run.leftovers() == [], what="no process", timeout_s=RUN_S)
    assert run.printed().endswith("try: interrupted; nothing is left\n")


def outputs(bootstrap: str) -> int:
    """End offsets of the output topic, summed."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test"})
    try:
        return sum(end for _, end in inside.watermarks(consumer, "flights-done").values())
    finally:
        consumer.close()
