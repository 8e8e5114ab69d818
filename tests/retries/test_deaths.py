"""A record that kills the processes that handle it: it ends as poison, and all others are handled meanwhile."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.broker.retry_fleet import RetryFleet
from tests.broker.workers import COMMAND, Kafka, Worker
from tests.support.memory_limit import memory_limit
from tests.support.waiting import eventually

pytestmark = pytest.mark.together

HANDLER = """
import ctypes
import json
import os
import signal
import threading
import time
from fleet_consumer import Produce

pause = threading.Event().wait

def exhaust_memory():
    taken = []
    while True:
        taken.append(bytearray(b"x" * (1 << 20)))

DEATHS = {
    "segfault": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(0),
    "hang": lambda: pause(3600),
    "memory": exhaust_memory,
}

def handle(record):
    asked = json.loads(record.value)
    if asked["do"] in DEATHS:
        DEATHS[asked["do"]]()
    return Produce(OUTPUT, record.value, key=f"{record.partition}-{record.offset}")

def handle_batch(records):
    return [handle(record) for record in records]

async def handle_later(record):
    return handle(record)
"""
SHORT: dict[str, Any] = {"consumer__sessionTimeoutSeconds": 2, "handler__decode": {"key": "Bytes", "value": "Bytes"}}
MEMORY_BYTES = 256 << 20
FORMS: dict[str, dict[str, Any]] = {
    "alone": {},
    "threads": {"handler__concurrency": 4},
    "batch": {"handler__python__callable": "handler:handle_batch"},
    "coroutines": {"handler__python__callable": "handler:handle_later", "handler__concurrency": 4},
}


@contextmanager
def kept_alive(
    fleet: RetryFleet, workers: int, *, retry: int = 0, commands: Sequence[Sequence[str]] = (), **changes: Any
) -> Iterator[list[int]]:
    """Run so many workers, each restarted as soon as it ends, as a kubelet does; return their ends.

    `commands` has one for each ordinal with another command than the installed one.
    """
    ended, over = list[int](), threading.Event()

    def keep(ordinal: int, role: str) -> None:
        command = commands[ordinal] if commands else (COMMAND,)
        while not over.is_set():
            with Worker(fleet.settings(**changes), fleet.folder, ordinal, role=role, command=command) as worker:
                while worker.running and not over.is_set():
                    over.wait(0.05)
                if worker.running:
                    worker.terminate()
                else:
                    ended.append(worker.wait(1))

    roles = [("main", n) for n in range(workers)] + [("retry", n) for n in range(retry)]
    threads = [threading.Thread(target=keep, args=(n, role)) for role, n in roles]
    for thread in threads:
        thread.start()
    try:
        yield ended
    finally:
        over.set()
        for thread in threads:
            thread.join()


def fleet_of(kafka: Kafka, folder: Path, name: str, **policy: Any) -> RetryFleet:
    fleet = RetryFleet(kafka, folder, name, sequence=("1s",), **policy)
    (folder / "handler.py").write_text(HANDLER.replace("OUTPUT", repr(fleet.output)))
    return fleet


def assert_poison_alone(fleet: RetryFleet, how: str) -> None:
    """Of 600 records number 300 is in the failed topic, as poison, and all others are done."""
    done = {json.loads(each.value or b"")["n"] for each in fleet.kafka.read(fleet.output)}
    assert done == set(range(600)) - {300}
    (failed,) = fleet.kafka.read(fleet.failed)
    assert json.loads(failed.value or b"") == {"do": how, "n": 300}
    assert (failed.headers["kr-reason"], failed.headers["kr-error-class"]) == (b"poison", b"Poison")


@pytest.mark.parametrize(
    ("how", "form"),
    [("segfault", "alone"), ("kill", "alone"), ("exit", "threads"), ("segfault", "batch"), ("kill", "coroutines")],
)
def test_one_of_600_records_kills_its_process_and_all_others_are_done(
    kafka: Kafka, tmp_path: Path, how: str, form: str
) -> None:
    fleet = fleet_of(kafka, tmp_path, f"deaths-{how}-{form}")
    wishes = [{"do": how if n == 300 else "ok", "n": n} for n in range(600)]
    fleet.send(*wishes)
    with kept_alive(fleet, 2, **SHORT, **FORMS[form]) as ended:
        fleet.wait_committed(timeout_s=180)
    assert_poison_alone(fleet, how)
    assert 3 <= len(ended) <= 6


@pytest.mark.skipif(os.geteuid() != 0, reason="a memory limit of the kernel needs root")
@pytest.mark.parametrize("form", ["alone", "threads"])
def test_one_of_600_records_exhausts_the_memory_limit_and_all_others_are_done(
    kafka: Kafka, tmp_path: Path, form: str
) -> None:
    fleet = fleet_of(kafka, tmp_path, f"deaths-memory-{form}")
    fleet.send(*({"do": "memory" if n == 300 else "ok", "n": n} for n in range(600)))
    with ExitStack() as stack:
        names = [f"{fleet.name}-{ordinal}-{os.getpid()}" for ordinal in range(2)]
        limits = [stack.enter_context(memory_limit(name, MEMORY_BYTES)) for name in names]
        commands = [limit.command(COMMAND) for limit in limits]
        with kept_alive(fleet, 2, commands=commands, **SHORT, **FORMS[form]) as ended:
            fleet.wait_committed(timeout_s=180)
        assert sum(limit.kills for limit in limits) == len(ended)
    assert_poison_alone(fleet, "memory")
    assert set(ended) == {-signal.SIGKILL}
    assert 3 <= len(ended) <= 6


def test_handler_that_hangs_indefinitely_with_one_record_ends_as_poison_too(kafka: Kafka, tmp_path: Path) -> None:
    fleet = fleet_of(kafka, tmp_path, "deaths-hang")
    fleet.send(*({"do": "hang" if n == 10 else "ok", "n": n} for n in range(20)), partition=0)
    limits: dict[str, Any] = {"consumer__maxPollIntervalSeconds": 3, "handler__timeoutSeconds": 1}
    with kept_alive(fleet, 1, **SHORT, **limits) as ended:
        fleet.wait_committed(timeout_s=180)
    assert [each.headers["kr-reason"] for each in kafka.read(fleet.failed)] == [b"poison"]
    assert 3 <= len(ended) <= 5


def test_retry_workers_fail_killing_records_and_continue(kafka: Kafka, tmp_path: Path) -> None:
    rule = {"when": {"exception": "Poison"}, "then": "Retry"}
    fleet = fleet_of(kafka, tmp_path, "deaths-retry", classify=[rule])
    fleet.send(*({"do": "kill" if n == 1 else "ok", "n": n} for n in range(4)), partition=0)
    with kept_alive(fleet, 1, retry=1, **SHORT):
        eventually(
            lambda: sum(kafka.end_offsets(fleet.failed).values()) == 1,
            timeout_s=180,
            what="the record to be given up",
            poll_s=0.5,
        )
        fleet.wait_committed()
    (failed,) = kafka.read(fleet.failed)
    assert (failed.headers["kr-reason"], failed.headers["kr-attempt"]) == (b"poison", b"1")


def test_processes_that_are_killed_with_healthy_records_fail_none(kafka: Kafka, tmp_path: Path) -> None:
    """Each but the first is killed after it has come a step further in every partition: three deaths before the first
    commit are what poison looks like, and a kill may hit that moment three times in a row."""
    fleet = fleet_of(kafka, tmp_path, "deaths-chaos")
    fleet.send_many(2_000)
    ends = kafka.end_offsets(fleet.source)
    for number in range(4):
        before = kafka.committed(fleet.name, fleet.source)
        with fleet.worker(**SHORT) as worker:
            worker.wait_ready()
            if number:
                eventually(partial(has_advanced, kafka, fleet, before, ends), what="a step further", poll_s=0.02)
            worker.kill()
    with fleet.worker(**SHORT):
        fleet.wait_committed()
    assert kafka.read(fleet.failed) == []
    assert set(fleet.origins_done()) == set(fleet.origins_in())


def has_advanced(kafka: Kafka, fleet: RetryFleet, before: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    """True if every partition that was not at its end has a later commit than before."""
    now = kafka.committed(fleet.name, fleet.source)
    open_ = [number for number, end in ends.items() if before.get(number, 0) < end]
    return all(now.get(number, 0) > max(0, before.get(number, 0)) for number in open_)
