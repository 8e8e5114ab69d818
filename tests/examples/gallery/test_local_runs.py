"""All handlers of the gallery as `fleet-consumer run --local` runs them: a topic of a real broker, the example's own
RetryPolicy, and servers that are there."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.broker.local_runs import running
from tests.broker.workers import Kafka
from tests.examples.gallery.packages import GALLERY
from tests.examples.gallery.performed import manifests
from tests.examples.gallery.postgres import Postgres
from tests.examples.gallery.service import Answer, Asked, Service
from tests.examples.gallery.test_services import completion
from tests.examples.gallery.test_stores import tables
from tests.support.kafka import KafkaBroker
from tests.support.object_store import ObjectStore
from tests.support.waiting import eventually


class Run(NamedTuple):
    """An example's run: a good and a bad value of its topic, and what the good one leads to."""

    name: str
    good: Any
    bad: Any
    ordinal: int = 0
    """The place of the ConsumerGroup in `group.yaml`."""


RUNS: Final = (
    Run("http_call", {"total": 1}, {"total": -1}),
    Run("database_upsert", {"name": "Ada"}, {"name": "nul \0"}),
    Run("batch_insert", {"sensor": "s", "celsius": 1}, {"sensor": "s", "celsius": "warm"}),
    Run("enrichment", {"customer": "c1"}, {"customer": ""}),
    Run("llm_call", {"text": "help"}, {"text": None}),
    Run("object_store", {"page": "/"}, None),
    Run("webhook_signed", {"paid": 1}, None),
    Run("schema_validation", {"id": "o", "placed": "2026-11-30", "items": [{"item": "a", "count": 1}]}, {}),
    Run("window_count", {"page": "/"}, {"page": None}),
    Run("route_by_content", {"method": "card", "amount": 10_000}, {"method": "gold", "amount": 1}),
    Run("webhook_signed", {"paid": 1}, {"no": "event"}, ordinal=1),
)


def answers(asked: Asked) -> Answer:
    """All services of the examples in one."""
    if asked.path.startswith("/v1"):
        return completion("other")
    if asked.path.startswith("/customers"):
        return Answer(body=b'{"name": "Ada", "tier": "gold"}')
    return Answer(422 if b"-1" in asked.body else 200)


@pytest.fixture
def environment(
    postgres: Postgres, object_store: ObjectStore, service: Service, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables of all pods."""
    service.answer = answers
    subscribers = {"shop": {"url": f"{service.url}/shop", "secret": "whsec_c2VjcmV0"}}
    values = {
        "PYTHONPATH": str(packages),
        "DATABASE_URL": postgres.url,
        **dict.fromkeys(("PAYMENTS_URL", "CUSTOMERS_URL"), service.url),
        "PAYMENTS_TOKEN": "t",
        "LLM_URL": f"{service.url}/v1",
        "LLM_MODEL": "small",
        "LLM_API_KEY": "k",
        "LLM_PAUSE_SECONDS": "0",
        "SUBSCRIBERS": json.dumps(subscribers),
        "BUCKET": object_store.bucket,
        "S3_ENDPOINT": object_store.endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
        **object_store.environment,
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    for name in ("database_upsert", "batch_insert", "window_count"):
        for statement in tables(name):
            postgres.rows(f"DROP TABLE IF EXISTS {statement.split()[2]}")
            postgres.rows(statement)


def topic_of(run: Run) -> str:
    return f"gallery-{run.name}-{run.ordinal}"


def handler_of(run: Run) -> dict[str, Any]:
    """The field `spec.handler` of its ConsumerGroup."""
    found: dict[str, Any] = manifests(run.name)[1][run.ordinal]["spec"]["handler"]
    return found


def arguments(run: Run, bootstrap: str) -> list[str]:
    """The command line with the settings of the example's ConsumerGroup."""
    spec = handler_of(run)
    call = spec["python"]["callable"].partition(":")[2]
    words = [
        "--local",
        f"{GALLERY / run.name / 'handler.py'}:{call}",
        "--topic",
        topic_of(run),
        "--group",
        topic_of(run),
    ]
    words += ["--bootstrap", bootstrap, "--retry-policy", str(GALLERY / run.name / "group.yaml")]
    for field, value in spec.get("decode", {}).items():
        words += [f"--decode-{field}", value]
    for output in spec.get("outputs", ()):
        words += ["--output", output]
    return [*words, "--concurrency", str(spec.get("concurrency", 1)), "--timeout", str(spec.get("timeoutSeconds", 60))]


def test_all_handlers_run_on_a_laptop(
    broker: KafkaBroker, postgres: Postgres, object_store: ObjectStore, environment: None, tmp_path: Path
) -> None:
    kafka = Kafka(broker.bootstrap)
    outputs = {
        each for run in RUNS for each in manifests(run.name)[1][run.ordinal]["spec"]["handler"].get("outputs", ())
    }
    kafka.create(*outputs, *map(topic_of, RUNS), partitions=1)
    with ExitStack() as ends:
        processes = {}
        for run in RUNS:
            folder = tmp_path / topic_of(run)
            folder.mkdir()
            values = [json.dumps(value).encode() for value in (run.good, run.bad) if value is not None]
            kafka.produce_keyed(topic_of(run), [(b"c1", value) for value in values])
            processes[topic_of(run)] = ends.enter_context(running(folder, *arguments(run, broker.bootstrap)))
        for run in RUNS:
            wanted = {0: 1 if run.bad is None else 2}
            eventually(
                lambda run=run, wanted=wanted: kafka.committed(topic_of(run), topic_of(run)) == wanted,  # type: ignore[misc]
                what=f"{topic_of(run)} to handle its records",
            )
        for process in processes.values():
            process.send_signal(signal.SIGINT)
        last = {topic: process.communicate(timeout=120)[0].splitlines()[-1] for topic, process in processes.items()}
    for run in RUNS:
        done, failed = (0, 2) if run.ordinal else (1, 0 if run.bad is None else 1)
        wanted_end = f"done={done} failed={failed} dropped=0 retried=0 waiting=0"
        assert (run.name, last[topic_of(run)]) == (run.name, wanted_end)
        assert len(kafka.read(f"_fleet.{topic_of(run)}.failed")) == failed
    assert {topic: len(kafka.read(topic)) for topic in outputs} == {
        **dict.fromkeys(outputs, 1),
        "payments-transfer": 0,
    }
    assert [postgres.rows(f"SELECT count(*) FROM {table}") for table in ("customers", "measurements", "views")] == [
        [(1,)]
    ] * 3
    assert len(list((object_store.folder / "gallery-object_store-0").rglob("*.gz"))) == 1
