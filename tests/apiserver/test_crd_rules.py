"""Objects that the API server accepts or refuses, and the texts of its refusals."""

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
    BACKFILL_RULES,
    BACKFILL_SCHEMA,
)
from tests.apiserver.conftest import Site
from tests.apiserver.offsets_rules import OFFSETS_IMMUTABLE, OFFSETS_REFUSED
from tests.apiserver.pod_rules import ACCEPTED_PODS, POD_RULES, POD_SCHEMA, UNKNOWN_FIELDS
from tests.apiserver.retry_rules import REDRIVE_IMMUTABLE, REDRIVE_IMMUTABLE_WORDS, RETRY_RULES, RETRY_SCHEMA
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
    retry_policy,
)

ROOT = Path(__file__).parents[2]
CONSUMER = "spec.consumer."
SASL = {"mechanism": "PLAIN", "secretRef": {"name": "s"}}
NAMED = {"oauth": {"tokenEndpoint": "https://login.example", "clientId": "a"}}
OAUTH = {"mechanism": "OAUTHBEARER", "secretRef": {"name": "s"}, "oauth": {"tokenEndpoint": "https://login.example"}}


REFUSED_BY_RULE: list[tuple[str, JsonObject, str]] = [
    (
        "PLAIN without TLS",
        kafka_cluster({"spec.sasl": SASL}),
        "spec.sasl.mechanism PLAIN and OAUTHBEARER send the secret readable on the wire: set spec.tls",
    ),
    (
        "OAUTHBEARER without a token endpoint",
        kafka_cluster({"spec.tls": {}, "spec.sasl": SASL | {"mechanism": "OAUTHBEARER"}}),
        "spec.sasl.oauth belongs to spec.sasl.mechanism OAUTHBEARER: set both or neither",
    ),
    (
        "a key and a pattern of authorities",
        kafka_cluster({"spec.tls": {"caSecretRef": {"name": "s", "key": "ca.crt", "pattern": "*.crt"}}}),
        "spec.tls.caSecretRef.key and pattern exclude each other",
    ),
    (
        "a user name for OAUTHBEARER",
        kafka_cluster({"spec.tls": {}, "spec.sasl": OAUTH | {"username": "alice"}}),
        "spec.sasl.username has no effect with spec.sasl.mechanism OAUTHBEARER: set spec.sasl.oauth.clientId",
    ),
    (
        "a password's key for OAUTHBEARER",
        kafka_cluster({"spec.tls": {}, "spec.sasl": OAUTH | {"secretRef": {"name": "s", "passwordKey": "p"}}}),
        "spec.sasl.secretRef.usernameKey and passwordKey have no effect with spec.sasl.mechanism OAUTHBEARER",
    ),
    (
        "a client secret's key for PLAIN",
        kafka_cluster({"spec.tls": {}, "spec.sasl": SASL | {"secretRef": {"name": "s", "clientSecretKey": "p"}}}),
        "spec.sasl.secretRef.clientIdKey and clientSecretKey take effect with spec.sasl.mechanism OAUTHBEARER only",
    ),
    (
        "a user name and its key",
        kafka_cluster(
            {"spec.tls": {}, "spec.sasl": SASL | {"username": "a", "secretRef": {"name": "s", "usernameKey": "u"}}}
        ),
        "spec.sasl.username and spec.sasl.secretRef.usernameKey exclude each other",
    ),
    (
        "a client id and its key",
        kafka_cluster(
            {
                "spec.tls": {},
                "spec.sasl": OAUTH
                | {
                    "oauth": {"tokenEndpoint": "https://a", "clientId": "a"},
                    "secretRef": {"name": "s", "clientIdKey": "u"},
                },
            }
        ),
        "spec.sasl.oauth.clientId and spec.sasl.secretRef.clientIdKey exclude each other",
    ),
    ("a long name", consumer_group({"metadata.name": "a" * 41}), "metadata.name must be a DNS label of at most 40"),
    ("a name with dots", consumer_group({"metadata.name": "a.b"}), "metadata.name must be a DNS label of at most 40"),
    ("a name with a digit first", consumer_group({"metadata.name": "1a"}), "metadata.name must be a DNS label"),
    (
        "topics and a pattern",
        consumer_group({"spec.topicPattern": "^a"}),
        "spec needs exactly one of topics and topicPattern",
    ),
    ("no topics", consumer_group({"spec.topics": REMOVED}), "spec needs exactly one of topics and topicPattern"),
    (
        "a managed topic as source",
        consumer_group({"spec.topics": ["_fleet.orders.failed"]}),
        "spec.topics must not name topics that begin with _fleet.",
    ),
    (
        "a managed topic as output",
        consumer_group({"spec.handler.outputs": ["_fleet.orders.failed"]}),
        "spec.handler.outputs must not name topics that begin with _fleet.",
    ),
    *OFFSETS_REFUSED,
    (
        "two handlers",
        consumer_group({"spec.handler.http": {}}),
        "spec.handler needs exactly one of python and http",
    ),
    (
        "no handler",
        consumer_group({"spec.handler": {}}),
        "spec.handler needs exactly one of python and http",
    ),
    (
        "the protocol of KIP-848",
        consumer_group({CONSUMER + "protocol": "Consumer"}),
        "spec.consumer.protocol Consumer (KIP-848) is not available in this version: take it out",
    ),
    (
        "settings of KIP-848",
        consumer_group({CONSUMER + "kip848": {}}),
        "spec.consumer.kip848 is not available in this version",
    ),
    (
        "scaling with commits that are too rare to learn from",
        consumer_group({"spec.scaling": {}, CONSUMER + "commitIntervalSeconds": 21}),
        "spec.scaling needs spec.consumer.commitIntervalSeconds of at most 20",
    ),
    (
        "heartbeats as rare as the session is long",
        consumer_group({CONSUMER + "classic": {"sessionTimeoutSeconds": 10, "heartbeatIntervalSeconds": 10}}),
        "spec.consumer.classic.heartbeatIntervalSeconds must be less than sessionTimeoutSeconds",
    ),
    (
        "an assignor named twice",
        consumer_group({CONSUMER + "classic": {"assignors": ["range", "sticky", "range"]}}),
        "spec.consumer.classic.assignors must name each assignor once",
    ),
    (
        "a librdkafka setting that touches the group",
        consumer_group({CONSUMER + "properties": {"enable.auto.commit": "true"}}),
        "spec.consumer.properties may name only settings of librdkafka's fetching",
    ),
    (
        "a setting of the producer that could lose records",
        consumer_group({"spec.producer": {"properties": {"acks": "0"}}}),
        "spec.producer.properties may name only settings of librdkafka's batches and connections",
    ),
    (
        "a librdkafka plugin",
        consumer_group({CONSUMER + "properties": {"plugin.library.paths": "/tmp/x"}}),
        "spec.consumer.properties may name only settings of librdkafka's fetching",
    ),
    (
        "scaling bounds the wrong way round",
        consumer_group({"spec.scaling": {"minReplicas": 3, "maxReplicas": 2}}),
        "spec.scaling.maxReplicas must not be less than minReplicas",
    ),
    (
        "retry workers' bounds the wrong way round",
        consumer_group({"spec.retry": {"policyRef": {"name": "p"}, "worker": {"minReplicas": 3, "maxReplicas": 2}}}),
        "spec.retry.worker.maxReplicas must not be less than minReplicas",
    ),
    *POD_RULES,
    *RETRY_RULES,
    *BACKFILL_RULES,
]

REFUSED_BY_SCHEMA: list[tuple[str, JsonObject, str]] = [
    *RETRY_SCHEMA,
    *BACKFILL_SCHEMA,
    ("no broker", kafka_cluster({"spec.bootstrapServers": []}), "spec.bootstrapServers"),
    ("a broker without a port", kafka_cluster({"spec.bootstrapServers": ["kafka"]}), "spec.bootstrapServers[0]"),
    ("port 0", kafka_cluster({"spec.bootstrapServers": ["kafka:0"]}), "spec.bootstrapServers[0]"),
    ("a port beyond all", kafka_cluster({"spec.bootstrapServers": ["kafka:65536"]}), "spec.bootstrapServers[0]"),
    (
        "a key with a slash",
        kafka_cluster({"spec.tls": {"caSecretRef": {"name": "s", "key": "a/b"}}}),
        "caSecretRef.key",
    ),
    ("a key that no Secret has", kafka_cluster({"spec.tls": {"caSecretRef": {"name": "s", "key": "..a"}}}), "key"),
    (
        "a pattern of a folder",
        kafka_cluster({"spec.tls": {"caSecretRef": {"name": "s", "pattern": "../*"}}}),
        "caSecretRef.pattern",
    ),
    (
        "a pattern without an asterisk",
        kafka_cluster({"spec.tls": {"caSecretRef": {"name": "s", "pattern": "ca.crt"}}}),
        "caSecretRef.pattern",
    ),
    ("a user name with a line end", kafka_cluster({"spec.sasl": SASL | {"username": "a\n"}}), "spec.sasl.username"),
    (
        "a token endpoint on the operator's loopback",
        kafka_cluster({"spec.tls": {}, "spec.sasl": OAUTH | {"oauth": {"tokenEndpoint": "http://localhost:8080"}}}),
        "spec.sasl.oauth.tokenEndpoint",
    ),
    (
        "an empty scope",
        kafka_cluster({"spec.tls": {}, "spec.sasl": OAUTH | {"oauth": NAMED["oauth"] | {"scope": ""}}}),
        "spec.sasl.oauth.scope",
    ),
    ("an unknown mechanism", kafka_cluster({"spec.sasl": SASL | {"mechanism": "GSSAPI"}}), "spec.sasl.mechanism"),
    ("no cluster", consumer_group({"spec.clusterRef": REMOVED}), "spec.clusterRef"),
    ("a group id with a slash", consumer_group({"spec.groupId": "a/b"}), "spec.groupId"),
    ("a topic with a blank", consumer_group({"spec.topics": ["a b"]}), "spec.topics[0]"),
    ("the same topic twice", consumer_group({"spec.topics": ["a", "a"]}), "spec.topics[1]"),
    ("negative replicas", consumer_group({"spec.replicas": -1}), "spec.replicas"),
    ("a fraction of a replica", consumer_group({"spec.replicas": 1.5}), "spec.replicas"),
    ("a callable without a module", consumer_group({"spec.handler.python.callable": "handle"}), "callable"),
    ("an unknown assignor", consumer_group({CONSUMER + "classic.assignors": ["best"]}), "assignors[0]"),
    ("no session timeout", consumer_group({CONSUMER + "classic.sessionTimeoutSeconds": 0}), "sessionTimeoutSeconds"),
    ("an unknown reset", consumer_group({CONSUMER + "autoOffsetReset": "earliest"}), "autoOffsetReset"),
    ("an unknown decoder", consumer_group({"spec.handler.decode": {"value": "Avro"}}), "decode.value"),
    ("a retry without a policy", consumer_group({"spec.retry": {}}), "spec.retry.policyRef"),
    *POD_SCHEMA,
]

IMMUTABLE: list[tuple[str, Mapping[str, Any], Mapping[str, Any], str]] = [
    ("another cluster", {}, {"spec.clusterRef": {"name": "other"}}, "spec.clusterRef is immutable"),
    ("a group id added", {}, {"spec.groupId": "orders"}, "spec.groupId is immutable"),
    ("a group id changed", {"spec.groupId": "a"}, {"spec.groupId": "b"}, "spec.groupId is immutable"),
    ("a group id removed", {"spec.groupId": "a"}, {"spec.groupId": REMOVED}, "spec.groupId is immutable"),
    *OFFSETS_IMMUTABLE,
]

ACCEPTED: list[tuple[str, JsonObject]] = [
    (
        "a Strimzi TLS user",
        kafka_cluster(
            {
                "spec.tls": {
                    "caSecretRef": {"name": "my-cluster-cluster-ca-cert", "pattern": "*.crt"},
                    "clientCertSecretRef": {"name": "orders", "certKey": "user.crt", "keyKey": "user.key"},
                }
            }
        ),
    ),
    (
        "a Strimzi SCRAM user",
        kafka_cluster(
            {
                "spec.tls": {"caSecretRef": {"name": "my-cluster-cluster-ca-cert"}},
                "spec.sasl": {"mechanism": "SCRAM-SHA-512", "username": "orders", "secretRef": {"name": "orders"}},
            }
        ),
    ),
    (
        "chosen keys of a login",
        kafka_cluster(
            {"spec.tls": {}, "spec.sasl": SASL | {"secretRef": {"name": "s", "usernameKey": "u", "passwordKey": "p"}}}
        ),
    ),
    ("a client id in the open", kafka_cluster({"spec.tls": {}, "spec.sasl": OAUTH | NAMED})),
    ("SCRAM without TLS", kafka_cluster({"spec.sasl": SASL | {"mechanism": "SCRAM-SHA-512"}})),
    ("PLAIN with TLS", kafka_cluster({"spec.sasl": SASL, "spec.tls": {}})),
    ("PLAIN without TLS, accepted", kafka_cluster({"spec.sasl": SASL | {"allowWithoutTls": True}})),
    ("the longest name", consumer_group({"metadata.name": "a" * 40})),
    ("a pattern", consumer_group({"spec.topics": REMOVED, "spec.topicPattern": "^orders\\..*"})),
    ("an HTTP handler", consumer_group({"spec.handler": {"http": {"port": 8000}}})),
    ("a fleet that sleeps", consumer_group({"spec.replicas": 0})),
    ("a Redrive of everything", redrive()),
    ("a Backfill of a day", backfill()),
    ("a policy of delays in any order", retry_policy({"spec.sequence": ["7d", "1s", "60s", "1m", "168h"]})),
    ("every field of a policy", full_retry_policy()),
    ("a budget of defaults", retry_policy({"spec.budget": {}})),
    ("a custom assignor", consumer_group({CONSUMER + "classic.assignors": ["a.b:C", "range"]})),
    *ACCEPTED_PODS,
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
    tried += [REDRIVE_IMMUTABLE_WORDS, BACKFILL_IMMUTABLE_WORDS]
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
        allowed["guard"] = {"maxLiveBehindSeconds": 60}
        here.client.would_replace(here.name, changed(made, {f"spec.{name}": value for name, value in allowed.items()}))
    finally:
        here.client.delete(here.name, made)


@pytest.mark.parametrize(
    "body",
    [full_kafka_cluster(), full_consumer_group(), full_retry_policy(), full_redrive(), full_backfill()],
    ids=lambda body: str(body["kind"]),
)
def test_object_with_every_field_is_stored_as_given(here: Site, body: JsonObject) -> None:
    """Nothing is pruned or replaced by a default; also not within Kubernetes' own types in the pod template."""
    assert here.accepted(body)["spec"] == body["spec"]


@pytest.mark.parametrize("body", named(ACCEPTED))
def test_good_objects_are_accepted(here: Site, body: JsonObject) -> None:
    assert here.accepted(body)["metadata"]["name"] == body["metadata"]["name"]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.yaml")), ids=lambda path: path.parent.name)
def test_examples_are_accepted(here: Site, path: Path) -> None:
    for body in documents(path):
        assert here.accepted(body)["kind"] == body["kind"]


def test_server_and_models_default_alike(here: Site) -> None:
    """The server's stored form of a small object equals the models' defaults."""
    bare, served = consumer_group(), here.accepted(consumer_group())
    assert ConsumerGroup.model_validate(served).spec == ConsumerGroup.model_validate(bare).spec
    assert served["spec"]["replicas"] == 1
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
