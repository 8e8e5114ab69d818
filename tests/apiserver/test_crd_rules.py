"""Objects that the API server accepts or refuses, and the messages of its refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.local_cluster.errors import ClusterError
from fleet_operator.api.v1alpha1 import ConsumerGroup, KafkaCluster
from tests.apiserver.backfill_rules import (
    BACKFILL_IMMUTABLE,
    BACKFILL_IMMUTABLE_WORDS,
    RETRY_WORDS,
)
from tests.apiserver.conftest import Site
from tests.apiserver.crd_rules import ACCEPTED, IMMUTABLE, REFUSED_BY_RULE, REFUSED_BY_SCHEMA
from tests.apiserver.offset_reset_rules import (
    OFFSET_RESET_IMMUTABLE,
    OFFSET_RESET_IMMUTABLE_WORDS,
    full_offset_reset,
    offset_reset,
)
from tests.apiserver.pod_rules import UNKNOWN_FIELDS
from tests.apiserver.retry_rules import REDRIVE_IMMUTABLE, REDRIVE_IMMUTABLE_WORDS
from tests.unit.api.backfill_objects import backfill, full_backfill
from tests.unit.api.crd_objects import (
    REMOVED,
    JsonObject,
    changed,
    consumer_group,
    full_consumer_group,
    full_kafka_cluster,
    full_redrive,
    full_retry_policy,
    kafka_cluster,
    redrive,
)

ROOT = Path(__file__).parents[2]
API = "consumerfleet.io/"
PATCHES = "examples/kustomize/"
"""Objects that Kustomize completes; tests/apiserver/test_kustomize.py builds them."""
EXAMPLES = [
    path
    for path in sorted((ROOT / "examples").rglob("*.yaml"))
    if API in path.read_text() and PATCHES not in path.as_posix()
]


def named(table: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The rows of a table for `parametrize`, each named by its first column."""
    return [pytest.param(*row[1:], id=row[0]) for row in table]


@pytest.fixture(scope="module")
def here(quiet_site: Callable[..., Site]) -> Site:
    return quiet_site("crd-rules")


def documents(path: Path) -> list[JsonObject]:
    return [body for body in yaml.safe_load_all(path.read_text()) if body]


def rules(schema: Any) -> Iterator[str]:
    """The message of every CEL rule in a schema."""
    if isinstance(schema, dict):
        yield from (rule["message"] for rule in schema.get("x-kubernetes-validations", ()))
        for inner in schema.values():
            yield from rules(inner)
    if isinstance(schema, list):
        for inner in schema:
            yield from rules(inner)


@pytest.mark.parametrize(("body", "words"), named(REFUSED_BY_RULE))
def test_rule_refuses_with_its_message(here: Site, body: JsonObject, words: str) -> None:
    """The message names the field and the fix."""
    assert words in here.refusal(body)


@pytest.mark.parametrize(("body", "field"), named(REFUSED_BY_SCHEMA))
def test_schema_refuses_and_names_the_field(here: Site, body: JsonObject, field: str) -> None:
    assert field in here.refusal(body)


def test_every_rule_has_a_refused_example() -> None:
    """A rule that no object can break is untested."""
    messages = [message for path in sorted((ROOT / "crds").glob("*.yaml")) for message in rules(documents(path)[0])]
    tried = [words for _, _, words in REFUSED_BY_RULE] + [words for _, _, _, words in IMMUTABLE]
    tried += [REDRIVE_IMMUTABLE_WORDS, BACKFILL_IMMUTABLE_WORDS, OFFSET_RESET_IMMUTABLE_WORDS, RETRY_WORDS]
    assert len(messages) > 15
    assert [message for message in messages if not any(message.startswith(words) for words in tried)] == []


@pytest.mark.parametrize(("first", "second", "words"), named(IMMUTABLE))
def test_immutable_fields_stay(here: Site, first: Mapping[str, Any], second: Mapping[str, Any], words: str) -> None:
    """The rules stand on the parent: adding and removing an optional field is a change, too."""
    made = consumer_group(first)
    here.client.create(here.name, made)
    try:
        assert words in here.refusal(consumer_group({**first, **second}), replaces=True)
        mutable = consumer_group({**first, "spec.topics": ["returns"], "spec.replicas": 5})
        here.client.would_replace(here.name, mutable)
    finally:
        here.client.delete(here.name, made)


@pytest.mark.parametrize(("first", "second"), named(REDRIVE_IMMUTABLE))
def test_redrive_follows_one_spec_to_its_end(here: Site, first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    made = redrive({"metadata.name": "fixed", "metadata.namespace": here.name, **first})
    here.client.create(here.name, made)
    try:
        assert REDRIVE_IMMUTABLE_WORDS in here.refusal(changed(made, second), replaces=True)
        mutable = changed(
            made, {"spec.suspend": True, "spec.rate": {"recordsPerSecond": 5}, "spec.ttlSecondsAfterFinished": 60}
        )
        here.client.would_replace(here.name, mutable)
    finally:
        here.client.delete(here.name, made)


@pytest.mark.parametrize(("first", "second"), named(BACKFILL_IMMUTABLE))
def test_backfill_follows_one_spec_to_its_end(here: Site, first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    made = backfill({"metadata.name": "fixed", "metadata.namespace": here.name, **first})
    here.client.create(here.name, made)
    try:
        assert BACKFILL_IMMUTABLE_WORDS in here.refusal(changed(made, second), replaces=True)
        allowed = {"suspend": True, "rate": {"recordsPerSecond": 5}, "ttlSecondsAfterFinished": 60}
        allowed |= {"guard": {"maxLiveBehindSeconds": 60}, "retry": 1}
        here.client.would_replace(here.name, changed(made, {f"spec.{name}": value for name, value in allowed.items()}))
    finally:
        here.client.delete(here.name, made)


def test_retry_of_a_backfill_is_only_raised(here: Site) -> None:
    made = backfill({"metadata.name": "fixed", "metadata.namespace": here.name, "spec.retry": 2})
    here.client.create(here.name, made)
    try:
        assert RETRY_WORDS in here.refusal(changed(made, {"spec.retry": 1}), replaces=True)
        assert RETRY_WORDS in here.refusal(changed(made, {"spec.retry": REMOVED}), replaces=True)
    finally:
        here.client.delete(here.name, made)


@pytest.mark.parametrize(("first", "second"), named(OFFSET_RESET_IMMUTABLE))
def test_offset_reset_asks_for_one_thing(here: Site, first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    made = offset_reset({"metadata.name": "fixed", "metadata.namespace": here.name, **first})
    here.client.create(here.name, made)
    try:
        assert OFFSET_RESET_IMMUTABLE_WORDS in here.refusal(changed(made, second), replaces=True)
        allowed = {"spec.notAfter": "2027-01-01T00:00:00Z", "spec.ttlSecondsAfterFinished": 60}
        here.client.would_replace(here.name, changed(made, allowed))
    finally:
        here.client.delete(here.name, made)


@pytest.mark.parametrize(
    "body",
    [
        full_kafka_cluster(),
        full_consumer_group(),
        full_retry_policy(),
        full_redrive(),
        full_backfill(),
        full_offset_reset(),
    ],
    ids=lambda body: str(body["kind"]),
)
def test_object_with_every_field_is_stored_as_given(here: Site, body: JsonObject) -> None:
    """Nothing is pruned or replaced by a default; also not within Kubernetes' own types in the pod template."""
    assert here.accepted(body)["spec"] == body["spec"]


@pytest.mark.parametrize("body", named(ACCEPTED))
def test_good_objects_are_accepted(here: Site, body: JsonObject) -> None:
    assert here.accepted(body)["metadata"]["name"] == body["metadata"]["name"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_examples_are_accepted(here: Site, path: Path) -> None:
    bodies = [body for body in documents(path) if str(body["apiVersion"]).startswith(API)]
    assert bodies
    for body in bodies:
        body["metadata"].pop("namespace", None)  # the site has its own
        assert here.accepted(body)["kind"] == body["kind"]


def test_server_and_models_default_alike(here: Site) -> None:
    """The server's stored form of a small object equals the models' defaults."""
    bare, served = consumer_group(), here.accepted(consumer_group())
    assert ConsumerGroup.model_validate(served).spec == ConsumerGroup.model_validate(bare).spec
    assert served["spec"]["suspend"] is False
    bare, served = kafka_cluster(), here.accepted(kafka_cluster())
    assert KafkaCluster.model_validate(served).spec == KafkaCluster.model_validate(bare).spec
    assert served["spec"]["offsetsTopic"] == {"manage": "Observe"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param(consumer_group({"spec.replica": 3}), "spec.replica", id="a mistyped field"),
        *named(UNKNOWN_FIELDS),
    ],
)
def test_unknown_fields_are_reported_by_strict_validation(here: Site, body: JsonObject, field: str) -> None:
    """kubectl validates strictly by default: a mistyped field is an error and is not ignored."""
    with pytest.raises(ClusterError, match=rf'unknown field "[^"]*{re.escape(field)}'):
        here.kubectl("create", "--dry-run=server", "-f", "-", text=json.dumps(body))
