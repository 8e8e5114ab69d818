"""Objects for the rules of the CRDs: what the API server refuses, by rule or by schema, and what it accepts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.apiserver.backfill_rules import (
    BACKFILL_ACCEPTED,
    BACKFILL_RULES,
    BACKFILL_SCHEMA,
)
from tests.apiserver.offset_reset_rules import OFFSET_RESET_RULES, OFFSET_RESET_SCHEMA, reset_to_a_time
from tests.apiserver.pod_rules import ACCEPTED_PODS, POD_RULES, POD_SCHEMA
from tests.apiserver.retry_rules import RETRY_RULES, RETRY_SCHEMA
from tests.apiserver.scaling_rules import SCALING_ACCEPTED, SCALING_RULES, SCALING_SCHEMA
from tests.unit.api.crd_objects import (
    REMOVED,
    JsonObject,
    consumer_group,
    full_retry_policy,
    kafka_cluster,
    redrive,
    retry_policy,
)

CONSUMER = "spec.consumer."
SASL = {"mechanism": "PLAIN", "secretRef": {"name": "s"}}
NAMED = {"oauth": {"tokenEndpoint": "https://login.example", "clientId": "a"}}
OAUTH = {"mechanism": "OAUTHBEARER", "secretRef": {"name": "s"}, "oauth": {"tokenEndpoint": "https://login.example"}}


REFUSED_BY_RULE: list[tuple[str, JsonObject, str]] = [
    (
        "PLAIN without TLS",
        kafka_cluster({"spec.sasl": SASL}),
        "spec.sasl.mechanism PLAIN and OAUTHBEARER send the secret in clear text: set spec.tls",
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
    (
        "a pattern that is none",
        consumer_group({"spec.topics": REMOVED, "spec.topicPattern": "(?=a)"}),
        "spec.topicPattern must be a regular expression",
    ),
    ("a long name of a KafkaCluster", kafka_cluster({"metadata.name": "a" * 64}), "metadata.name must be"),
    ("a dot in the name of a KafkaCluster", kafka_cluster({"metadata.name": "a.b"}), "metadata.name must be"),
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
    *OFFSET_RESET_RULES,
    *SCALING_RULES,
]

REFUSED_BY_SCHEMA: list[tuple[str, JsonObject, str]] = [
    *RETRY_SCHEMA,
    *BACKFILL_SCHEMA,
    *OFFSET_RESET_SCHEMA,
    *SCALING_SCHEMA,
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
]

ACCEPTED: list[tuple[str, JsonObject]] = [
    ("a reset of one topic to a time", reset_to_a_time()),
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
    *BACKFILL_ACCEPTED,
    ("a policy of delays in any order", retry_policy({"spec.sequence": ["7d", "1s", "60s", "1m", "168h"]})),
    ("every field of a policy", full_retry_policy()),
    ("a budget of defaults", retry_policy({"spec.budget": {"action": "Fail"}})),
    ("a custom assignor", consumer_group({CONSUMER + "classic.assignors": ["a.b:C", "range"]})),
    *ACCEPTED_PODS,
    *SCALING_ACCEPTED,
]
