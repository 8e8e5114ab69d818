"""The page about retries: its objects are accepted, its handler does what the table says, its names are the code's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet_consumer.clock import SystemClock
from fleet_consumer.contract import naming, pod
from fleet_consumer.contract.failure_reasons import FailureReason
from fleet_consumer.contract.patterns import SEARCHED_CHARACTERS_MAX
from fleet_consumer.contract.policies import Policies, parse_policies
from fleet_consumer.contract.redrive_config import COUNTS
from fleet_consumer.record import Record
from fleet_consumer.retry import headers
from fleet_consumer.retry.budget import PROBES
from fleet_consumer.retry.failure import Drop, Failure, classify
from fleet_consumer.retry.headers import SPRING_PREFIX, spring_aliases
from fleet_consumer.retry.routing import route
from fleet_consumer.retry.suppression import REBUILD_RECORDS, WINDOW_RECORDS
from fleet_consumer.worker.member import WorkerState
from fleet_consumer.worker.metrics import GroupLabels, metrics_page
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.redrive import Redrive
from fleet_operator.api.v1alpha1.retrypolicy import RetryPolicy
from fleet_operator.planning.redrive import phase as redrive_phase
from fleet_operator.planning.retry.intent import expand
from tests.support.metrics import sample

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "retries.md").read_text()
SERVER = {"metadata": {"namespace": "shop", "uid": "0f6c2f3e-8f0e-4e0d-9a1b-000000000001", "generation": 1}}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def rows(title: str) -> list[list[str]]:
    """The rows of the table whose first column has this title."""
    table = re.search(rf"^\| {re.escape(title)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert table is not None, title
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[1].splitlines()]


def objects() -> dict[str, Any]:
    """The objects of the page by kind, as the API server would give them."""
    found = {}
    for document in map(yaml.safe_load, blocks("yaml")):
        if "kind" not in document:
            continue  # rules for Prometheus, or a part of a spec
        document["metadata"] |= SERVER["metadata"]
        found[document["kind"]] = document
    return found


def policies() -> Policies:
    """Policies given to the workers of the page's group."""
    revision = expand(RetryPolicy.model_validate(objects()["RetryPolicy"]))
    return parse_policies(
        {
            "version": 1,
            "policy": "standard",
            "current": revision.hash,
            "revisions": {revision.hash: dict(revision.content)},
            "delays": sorted(set(revision.content["sequence"])),
            "partitions": 4,
            "maxMessageBytes": 1_114_124,
        }
    )


def test_every_documented_object_is_valid() -> None:
    found = objects()
    assert set(found) == {"RetryPolicy", "ConsumerGroup", "Redrive"}
    group = ConsumerGroup.model_validate(found["ConsumerGroup"])
    assert group.spec.retry is not None
    assert group.spec.retry.policy_ref.name == found["RetryPolicy"]["metadata"]["name"]
    redrive = Redrive.model_validate(found["Redrive"])
    assert redrive_phase.find_refusal(redrive) is None
    assert redrive.spec.group_ref.name == group.metadata.name


def test_documented_deletion_spec_is_valid() -> None:
    (part,) = [found for text in blocks("yaml") if "deletion" in (found := yaml.safe_load(text))]
    body = objects()["ConsumerGroup"]
    deletion = ConsumerGroup.model_validate(body | {"spec": body["spec"] | part}).spec.deletion
    assert (deletion.retry_topics, deletion.group, deletion.timeout_seconds) == ("Drain", "Delete", 7200)


def test_documented_handler_routes_records_as_its_table_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = blocks("python")
    module: dict[str, Any] = {"__name__": "shop"}
    exec(compile(source, "shop.py", "exec"), module)
    for value, becomes in rows("Value"):
        record = Record("orders", 0, 0, 0, b"k", value.strip("`"))
        try:
            module["handle"](record)
        except Exception as error:
            verdict = classify(error, policies().newest)
            way = route(record, verdict, policies().newest, group_id="orders", now_ms=1)
        assert ("dropped" if isinstance(way, Drop) else f"`{way.topic}`") == becomes, value


CALLS = 'File "shop.py", line 1, in handle'
FAILURE = Failure(FailureReason.EXHAUSTED, "ValueError", "no", "exception=ValueError", CALLS)


def test_table_of_headers_matches_each_kind_of_copy() -> None:
    record, history = (
        Record("t", 0, 0, 0, b"", b""),
        headers.RetryHistory(headers.Origin("t", 0, 0, 0), first_failed_at=1, replay_epoch="0" * 16),
    )
    newest = policies().newest
    failed = headers.failed_headers(headers.FailedDelivery(record, FAILURE, "g", 1, history), newest)
    written = {
        "retry": headers.retry_headers(headers.FailedDelivery(record, FAILURE, "g", 1, history), newest, delay_s=5),
        "failed": failed,
        "redrive": headers.redriven_headers(failed, history, redrive_id="x", source="0:1", now_ms=1),
    }
    told: dict[str, set[str]] = {where: set() for where in written}
    for name, _, where in rows("Header"):
        places = {"all": list(written), "after a redrive": ["redrive"]}.get(where, where.split(", "))
        for place in places:
            told[place].add(name.strip("`"))
    assert told == {where: set(dict(names)) for where, names in written.items()}


def test_page_names_every_reason_and_every_header_of_the_spring_profile() -> None:
    for reason in FailureReason:
        assert f"`{reason.value}`" in PAGE
    spring = {name for name, _ in spring_aliases(headers.Origin("t", 0, 0, 0), b"", b"", b"")}
    assert set(re.findall(rf"`({SPRING_PREFIX}[a-z-]+)`", PAGE)) == spring


def test_alert_on_given_up_records_sees_the_first_failure_of_a_worker() -> None:
    """`increase` needs a value to begin with: every reason is there from the first scrape on."""
    state = WorkerState(revision="r", max_poll_interval_s=300, instance_id=None)
    page = metrics_page(state, GroupLabels("shop", "orders", "orders", "main"), SystemClock())().decode()
    for reason in FailureReason:
        assert sample(page, "consumer_fleet_worker_failures_total", reason=reason.value) == 0


def test_documented_numbers_and_topics_equal_the_code() -> None:
    assert f"{WINDOW_RECORDS:,} records" in PAGE
    assert f"last {REBUILD_RECORDS:,} records before" in PAGE
    assert f"first {SEARCHED_CHARACTERS_MAX} characters" in PAGE
    assert (PROBES, "three successes in a row" in PAGE) == (3, True)
    topics = {naming.retry_topic("orders", "5m"), naming.redrive_topic("orders"), naming.failed_topic("orders")}
    assert all(f"`{topic}`" in PAGE for topic in topics)
    assert f"`{naming.retry_group('orders')}`" in PAGE


def test_documented_last_line_and_exit_codes_equal_the_commands() -> None:
    (line,) = [line for text in blocks("console") for line in text.splitlines() if line.startswith("{")]
    assert list(json.loads(line)) == ["ok", *COUNTS, "refused", "redrivenTo"]
    codes = (pod.EXIT_OK, pod.EXIT_SETTINGS, pod.EXIT_SURROUNDINGS)
    assert (
        "The exit code is {} when the run is done, {} when its settings are wrong, and {} when".format(*codes) in PAGE
    )
    assert pod.REDRIVE_CONFIG in PAGE
