"""`fleet-consumer run --local` on a real broker: the same semantics, without Kubernetes."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import signal
import subprocess
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest

from e2e.local_cluster.daemons import free_ports
from tests.broker.local_runs import running
from tests.broker.workers import COMMAND, Kafka
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]

HANDLER = """
from fleet_consumer import Produce

def handle(record):
    if b"bad" in record.value:
        raise ValueError("asked to fail")
    return Produce("OUT", record.value.upper())
"""


@pytest.fixture
def kafka(broker: KafkaBroker) -> Kafka:
    return Kafka(broker.bootstrap)


def test_local_handler_continues_where_it_stopped(kafka: Kafka, tmp_path: Path) -> None:
    kafka.create("local", "local-done", partitions=2)
    kafka.produce("local", [b"one", b"bad two", b"three"])
    (tmp_path / "shop.py").write_text(HANDLER.replace("OUT", "local-done"))
    arguments = ["--local", "shop.py", "--topic", "local", "--bootstrap", kafka.bootstrap, "--output", "local-done"]
    arguments += ["--group", "local-tries"]
    with running(tmp_path, *arguments) as process:
        eventually(lambda: len(kafka.read("local-done")) == 2, what="outputs", poll_s=0.5)
        eventually(lambda: len(kafka.read("_fleet.local-tries.failed")) == 1, what="a failed record")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0, (tmp_path / "err.txt").read_text()
    assert "joining as" not in (tmp_path / "err.txt").read_text(), "lines of the group protocol"
    assert "group local-tries, failed records to _fleet.local-tries.failed" in out
    assert out.splitlines()[-1].startswith("done=2 failed=1 dropped=0")
    kafka.produce("local", [b"four"])
    with running(tmp_path, *arguments) as process:
        eventually(lambda: len(kafka.read("local-done")) == 3, what="the new record", poll_s=0.5)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)
    assert out.splitlines()[-1].startswith("done=1 failed=0 dropped=0")
    assert {each.value for each in kafka.read("local-done")} == {b"ONE", b"THREE", b"FOUR"}
    assert [each.value for each in kafka.read("_fleet.local-tries.failed")] == [b"bad two"]


def test_closed_pipe_ends_a_local_run_in_order_and_fails_no_record(kafka: Kafka, tmp_path: Path) -> None:
    """As with `2>&1 | head -1`: the handler prints, and nobody reads it any more."""
    kafka.create("local-piped", partitions=1)
    (tmp_path / "shop.py").write_text("def handle(record): print(record.value, flush=True)\n")
    command = f"{COMMAND} run --local shop.py --topic local-piped --bootstrap {kafka.bootstrap} --group local-piped"
    reading, writing = os.pipe()
    process = subprocess.Popen(
        shlex.split(command), cwd=tmp_path, stdout=writing, stderr=writing, start_new_session=True
    )
    os.close(writing)
    try:
        kafka.produce("local-piped", [b"one"])
        with os.fdopen(reading, "rb") as output:
            assert any(b"one" in line for line in output)
        began = time.monotonic()
        kafka.produce("local-piped", [b"two"])
        assert process.wait(timeout=120) == 0
        took_s = time.monotonic() - began
    finally:
        process.kill()
    assert took_s < 10, "a second on an idle machine"
    assert kafka.read("_fleet.local-piped.failed") == []


def test_invalid_usage_is_reported_in_one_line_before_anything_starts(kafka: Kafka, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import nowhere_at_all\n")
    kafka.create("local-wrong", partitions=1)

    def refused(*arguments: str) -> tuple[int, str]:
        command = [COMMAND, "run", "--local", "shop.py", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
        return done.returncode, done.stderr

    code, text = refused("--topic", "local-wrong", "--bootstrap", kafka.bootstrap)
    assert code == 20
    assert "fleet-consumer: HandlerImportFailed:" in text
    assert "nowhere_at_all" in text
    (tmp_path / "shop.py").write_text("def handle(record): pass\n")
    code, text = refused("--topic", "local-gone", "--bootstrap", kafka.bootstrap)
    assert (code, "TopicNotFound" in text, "local-gone" in text) == (21, True, True)
    code, text = refused("--topic", "local-wrong", "--bootstrap", f"127.0.0.1:{free_ports(1)[0]}")
    assert (code, "BrokerUnreachable" in text) == (21, True)
    code, text = refused("--topic", "local-wrong", "--bootstrap", kafka.bootstrap, "--failed-topic", "no/name")
    assert (code, "TopicNotCreated" in text, "--failed-topic" in text or "cannot be used" in text) == (21, True, True)
    assert "local-gone" not in kafka.topics()


def test_local_runs_of_the_laptop_page(kafka: Kafka, tmp_path: Path) -> None:
    """Word for word, except the broker's address: without retries, with delays, with the policy of the README."""
    text = (ROOT / "README.md").read_text()
    example = re.search(r"## A fleet in thirty lines\n\n```yaml\n(.*?)```", text, re.DOTALL)
    assert example, "the README has lost its example"
    source = re.search(r"  handler\.py: \|\n((?:    .*\n|\n)+)", example[1])
    assert source, "the README has lost its handler"
    (tmp_path / "fleet.yaml").write_text(example[1])
    (tmp_path / "handler.py").write_text(textwrap.dedent(source[1]))
    page = (ROOT / "docs/laptop.md").read_text()
    commands = re.findall(r"^fleet-consumer run --local .*$", page, re.MULTILINE)
    group = f"local.{getpass.getuser()}.handler"
    kafka.create("orders", "orders-done", partitions=1)
    delays: list[set[str]] = [set(), {"5s", "30s"}, {"5m", "30m", "1h"}]
    assert len(commands) == len(delays)
    for count, (command, added) in enumerate(zip(commands, delays, strict=True), 1):
        kafka.produce("orders", [b"one tea"])
        words = shlex.split(command.replace("localhost:9092", kafka.bootstrap))
        with running(tmp_path, *words[2:]) as process:
            eventually(partial(outputs_are, kafka, count), what="the order to be done", poll_s=0.5)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=120)
            assert process.returncode == 0, (tmp_path / "err.txt").read_text()
        assert {f"_fleet.{group}.failed", *(f"_fleet.{group}.retry.{delay}" for delay in added)} <= kafka.topics()


def outputs_are(kafka: Kafka, count: int) -> bool:
    return [each.value for each in kafka.read("orders-done")] == [b"ONE TEA"] * count
