"""`fleet-consumer run --local` with retries: two processes that are one command, on a real broker."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from fleet_consumer.contract import naming
from tests.broker.local_runs import running
from tests.broker.workers import Kafka
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

STOP_S = 120

HANDLER = '''
"""Does what a record's value asks for: fail so many times, and then end its process or be done."""
import os
from pathlib import Path

from fleet_consumer import Produce

def setup(context):
    Path(f"up-{os.getpid()}").touch()

def teardown(context):
    Path(f"down-{os.getpid()}").touch()

def handle(record):
    asked, times, *_ = record.value.decode().split()
    if record.attempt < int(times):
        raise ConnectionError(f"asked to fail at {record.attempt}")
    if asked == "exit":
        os._exit(7)
    return Produce("OUT", f"{record.value.decode()} at {record.attempt}", key=f"{record.partition}-{record.offset}")
'''


class LocalRun:
    """A group with its own names, and the command that consumes it."""

    def __init__(self, kafka: Kafka, folder: Path, name: str) -> None:
        self.kafka, self.folder, self.name = kafka, folder, name
        self.done, self.failed = f"{name}-done", naming.failed_topic(name)
        kafka.create(name, self.done, partitions=2)
        (folder / "shop.py").write_text(HANDLER.replace("OUT", self.done))

    def arguments(self, *more: str) -> Sequence[str]:
        words = f"--local shop.py --topic {self.name} --output {self.done} --group {self.name}"
        return [*words.split(), "--bootstrap", self.kafka.bootstrap, *more]

    def send(self, *wishes: str) -> None:
        self.kafka.produce(self.name, [asked.encode() for asked in wishes])

    def outputs(self) -> list[str]:
        return sorted((each.value or b"").decode() for each in self.kafka.read(self.done))

    def await_outputs(self, *wanted: str) -> None:
        eventually(lambda: set(self.outputs()) == set(wanted), what=f"{len(wanted)} outputs", poll_s=0.5)

    def waiting_in(self, delay: str) -> int:
        topic = naming.retry_topic(self.name, delay)
        return len(self.kafka.read(topic)) if topic in self.kafka.topics() else 0

    def logged(self) -> str:
        return (self.folder / "err.txt").read_text()

    def stop(self, process: subprocess.Popen[str]) -> str:
        """Send Ctrl-C as in a terminal, to the whole process group; return the output."""
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=STOP_S)
        assert process.returncode == 0, self.logged()
        assert self.leftovers() == []
        return out

    def leftovers(self) -> list[Path]:
        """The processes and their shared state."""
        return list(self.folder.glob("fleet-consumer-*"))

    def configs(self, *topics: str) -> dict[str, dict[str, str]]:
        """The settings of topics."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        asked = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic) for topic in topics])
        return {
            resource.name: {name: str(entry.value) for name, entry in future.result(30).items()}
            for resource, future in asked.items()
        }


def counts(out: str) -> dict[str, int]:
    """The last line that was printed."""
    return {name: int(number) for name, number in (pair.split("=") for pair in out.splitlines()[-1].split())}


@pytest.fixture
def kafka(broker: KafkaBroker) -> Kafka:
    return Kafka(broker.bootstrap)


def test_record_is_tried_again_until_it_succeeds_or_has_no_attempt_left(kafka: Kafka, tmp_path: Path) -> None:
    local_run = LocalRun(kafka, tmp_path, "local-retries")
    local_run.send("fail 2", "fail 0", "fail 9")
    with running(tmp_path, *local_run.arguments("--retry", "1s,1s")) as process:
        local_run.await_outputs("fail 0 at 0", "fail 2 at 2")
        eventually(lambda: kafka.read(local_run.failed), what="the failed record", poll_s=0.5)
        out = local_run.stop(process)
    assert "group local-retries, retries after 1s, 1s, failed records to _fleet.local-retries.failed" in out
    sums = counts(out)
    assert sums["waiting"] == 0
    # A machine that stalls for a session causes duplicate deliveries: there may be more than records.
    assert (sums["done"] >= 2, sums["failed"] >= 1, sums["dropped"], sums["retried"] >= 4) == (True, True, 0, True)
    failed, *copies = kafka.read(local_run.failed)
    assert {each.value for each in (failed, *copies)} == {b"fail 9"}
    history = {name: (failed.headers[name] or b"").decode() for name in failed.headers}
    assert history["trace"] == "t-3"
    assert (history["kr-attempt"], history["kr-reason"], history["kr-origin-topic"]) == (
        "2",
        "exhausted",
        "local-retries",
    )
    assert history["kr-error-message"] == "asked to fail at 2"
    assert history["kr-policy"].startswith("local@")


def test_local_topics_equal_the_operators_also_existing_ones(kafka: Kafka, tmp_path: Path) -> None:
    local_run = LocalRun(kafka, tmp_path, "local-topics")
    second, redrive = naming.retry_topic(local_run.name, "2s"), naming.redrive_topic(local_run.name)
    kafka.create(second, partitions=1, config={"message.timestamp.type": "CreateTime", "retention.ms": "1000"})
    kafka.create(local_run.failed, partitions=1, config={"max.message.bytes": "4000000"})
    local_run.send("fail 1")
    with running(tmp_path, *local_run.arguments("--retry", "2s,1s")) as process:
        local_run.await_outputs("fail 1 at 1")
        local_run.stop(process)
    first = naming.retry_topic(local_run.name, "1s")
    configs = local_run.configs(first, second, redrive, local_run.failed)
    assert {each["message.timestamp.type"] for each in configs.values()} == {"LogAppendTime"}
    assert {name: each["max.message.bytes"] for name, each in configs.items()} == {
        first: str(1_048_588 + 65_536),
        second: str(1_048_588 + 65_536),
        redrive: str(1_048_588 + 65_536),
        local_run.failed: "4000000",
    }
    assert configs[second]["retention.ms"] == str(30 * 86_400_000)


def test_nothing_is_lost_by_an_end_in_the_middle_and_a_new_start(kafka: Kafka, tmp_path: Path) -> None:
    local_run = LocalRun(kafka, tmp_path, "local-middle")
    local_run.send(*(f"fail {max(0, number % 5 - 2)} {number}" for number in range(201)))
    with running(tmp_path, *local_run.arguments("--retry", "1s,2s")) as process:
        eventually(lambda: kafka.read(local_run.done), what="the first output", poll_s=0.1)
        assert counts(local_run.stop(process))["done"] >= 1
    wanted = {str(number) for number in range(201)}

    def seen() -> set[str]:
        return {(each.value or b"").decode().split()[2] for each in kafka.read(local_run.done)}

    with running(tmp_path, *local_run.arguments("--retry", "1s,2s")) as process:
        eventually(lambda: seen() == wanted, what="all records to be done", poll_s=0.5)
        local_run.stop(process)
    assert kafka.read(local_run.failed) == []


def test_waiting_records_are_reported_when_started_without_retries(kafka: Kafka, tmp_path: Path) -> None:
    local_run = LocalRun(kafka, tmp_path, "local-waits")
    local_run.send("fail 1", "fail 1", "fail 0")
    with running(tmp_path, *local_run.arguments("--retry", "1h")) as process:
        local_run.await_outputs("fail 0 at 0")
        eventually(lambda: local_run.waiting_in("1h") == 2, what="two waiting records", poll_s=0.2)
        assert counts(local_run.stop(process))["waiting"] == 2
    with running(tmp_path, *local_run.arguments()) as process:
        eventually(lambda: "worker started" in local_run.logged(), what="a start without retries")
        out = local_run.stop(process)
    assert "2 records of this group wait for a retry: --retry or --retry-policy handles them" in out


def test_records_that_wait_for_a_delay_of_an_earlier_run_are_handled(kafka: Kafka, tmp_path: Path) -> None:
    local_run = LocalRun(kafka, tmp_path, "local-delays")
    local_run.send("fail 1 a", "fail 1 b")
    with running(tmp_path, *local_run.arguments("--retry", "10s")) as process:
        eventually(lambda: local_run.waiting_in("10s") == 2, what="two waiting records", poll_s=0.2)
        local_run.stop(process)
    with running(tmp_path, *local_run.arguments("--retry", "1s")) as process:
        local_run.await_outputs("fail 1 a at 1", "fail 1 b at 1")
        assert counts(local_run.stop(process))["waiting"] == 0


def test_crash_of_the_retry_worker_ends_the_command_with_its_exit_code(kafka: Kafka, tmp_path: Path) -> None:
    local_run = LocalRun(kafka, tmp_path, "local-crash")
    local_run.send("fail 0", "exit 1")
    with running(tmp_path, *local_run.arguments("--retry", "1s")) as process:
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 7, local_run.logged()
    assert "RetryWorkerEnded: the retry worker has ended with exit code 7" in local_run.logged()
    assert out.splitlines()[-1].startswith("done=")
    ups = {path.name.removeprefix("up-") for path in tmp_path.glob("up-*")}
    downs = {path.name.removeprefix("down-") for path in tmp_path.glob("down-*")}
    assert str(process.pid) in downs
    assert len(ups) == 2
    assert kafka.read(local_run.failed) == []


@pytest.mark.parametrize("crash", [True, False])
def test_retry_worker_ends_in_order_when_the_main_one_is_gone(kafka: Kafka, tmp_path: Path, crash: bool) -> None:
    """By its own crash, or by a kill that gives it no time to report."""
    local_run = LocalRun(kafka, tmp_path, f"local-gone-{crash}".lower())
    with running(tmp_path, *local_run.arguments("--retry", "1s")) as process:
        eventually(lambda: len(list(tmp_path.glob("up-*"))) == 2, what="both workers up")
        if crash:
            local_run.send("exit 0")
        else:
            process.kill()
        assert process.wait(120) == (7 if crash else -signal.SIGKILL)
        (retries,) = {path.name[3:] for path in tmp_path.glob("up-*")} - {str(process.pid)}
        eventually((tmp_path / f"down-{retries}").exists, what="the retry worker to end in order")
        eventually(lambda: not local_run.leftovers(), what="its files to be removed")


def test_ctrl_c_at_once_ends_both_without_an_error(kafka: Kafka, tmp_path: Path) -> None:
    """The retry worker may still be importing."""
    local_run = LocalRun(kafka, tmp_path, "local-at-once")
    with running(tmp_path, *local_run.arguments("--retry", "1s")) as process:
        eventually(lambda: "worker started" in local_run.logged(), what="the main worker", poll_s=0.01)
        local_run.stop(process)
    assert "Traceback" not in local_run.logged()


def test_invalid_policy_is_reported_before_anything_starts(kafka: Kafka, tmp_path: Path) -> None:
    local_run = LocalRun(kafka, tmp_path, "local-refused")
    (tmp_path / "policy.yaml").write_text("sequence: [5s]\n")
    with running(tmp_path, *local_run.arguments("--retry-policy", "policy.yaml")) as process:
        assert process.wait(120) == 20
    refused = "SettingsInvalid: --retry-policy policy.yaml: holds a document that is not a Kubernetes"
    assert refused in local_run.logged()
    assert not [topic for topic in kafka.topics() if topic.startswith(f"_fleet.{local_run.name}.")]
