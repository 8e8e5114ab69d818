"""Secrets in objects and logs: none of them is in a bundle."""

from __future__ import annotations

import json

import pytest

from fleet_kubectl.redaction import redacted, redacted_text
from tests.unit.plugin.fleets import pod

SECRET = "hunter2-x9"


@pytest.mark.parametrize(
    "text",
    [
        f"connect to https://anna:{SECRET}@db/orders",
        f"Authorization: Bearer {SECRET}",
        f"password={SECRET}",
        f'"sasl.password": "{SECRET}"',
        f"DB_PASSWORD='{SECRET}' AWS_SECRET_ACCESS_KEY={SECRET}",
        f'{{"message": "{{\\"token\\": \\"{SECRET}\\"}}"}}',
        f"api_key: {SECRET}, next=1",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}",
        f"eyJhbGciOiJIUzI1.{SECRET}.sig",
        f"redis://:{SECRET}@cache:6379/0",
        f"https://{SECRET}@host/path",
        f"https://anna:a/{SECRET}@host/path",
        f"https://anna:a@{SECRET}@host/path",
        f"redis:\\/\\/:{SECRET}@cache",
        f"Server=db;pwd={SECRET};Database=a",
        f"https://store/file?sig={SECRET}&a=1",
        f"AccountKey={SECRET}==;EndpointSuffix=core",
        f"password: two {SECRET}",
        f"password = two, {SECRET}",
        f"password: |\n  one\n  {SECRET}",
        f'"password": "a\\"{SECRET}"',
        f'"password": ["a", "{SECRET}"]',
        f'"message": "{{\\"token\\": \\"a\\\\\\"{SECRET}\\"}}"',
        f'"password": two {SECRET}',
        f"password: 'it''s {SECRET}'",
        f"run --password {SECRET}",
        f"run --api-key '{SECRET} {SECRET}'",
        f"{'x' * 100}password={SECRET}",
    ],
)
def test_secret_text_is_replaced(text: str) -> None:
    assert SECRET not in redacted_text(text)
    assert redacted_text(text) != text


@pytest.mark.parametrize("key", ["AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE"])
def test_key_ids_of_clouds_are_replaced(key: str) -> None:
    assert redacted_text(f"signed by {key} today") == "signed by (redacted) today"


@pytest.mark.parametrize(
    "line",
    [
        '{"level": "info", "message": "record failed", "topic": "orders", "partition": 3, "offset": 17, "key": "a"}',
        "docker-pullable://registry/worker@sha256:0123",
        "see https://kafka.apache.org/documentation/#consumerconfigs for more",
    ],
)
def test_ordinary_log_lines_stay(line: str) -> None:
    assert redacted_text(line) == line


def test_json_line_with_a_secret_keeps_its_other_fields() -> None:
    line = json.dumps({"token": "a b", "tokens": 3, "message": f"password: two {SECRET}", "topic": "orders"})
    said = json.loads(redacted_text(line).replace("(redacted),", '"(redacted)",'))
    assert SECRET not in str(said)
    assert said["topic"] == "orders"
    assert said["message"] == "password: (redacted)"


def test_objects_keep_names_and_lose_values() -> None:
    body = pod("orders-fleet-0")
    body["spec"]["containers"][0]["env"] = [
        {"name": "DB_PASSWORD", "value": SECRET},
        {"name": "URL", "value": SECRET},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "db", "key": "token"}}},
    ]
    body["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": SECRET, "apiToken": SECRET}
    body["metadata"]["managedFields"] = [{"manager": SECRET}]
    shown = redacted(body)
    assert SECRET not in json.dumps(shown)
    assert shown["spec"]["containers"][0]["env"][2]["valueFrom"]["secretKeyRef"] == {"name": "db", "key": "token"}
    assert body["metadata"]["managedFields"], "the original is unchanged"
    cluster = {"kind": "KafkaCluster", "metadata": {}, "spec": {"sasl": {"secretRef": {"name": "kafka-login"}}}}
    assert redacted(cluster)["spec"] == cluster["spec"]


def test_headers_and_arguments_lose_their_values() -> None:
    probe = {"httpGet": {"path": "/healthz", "httpHeaders": [{"name": "X-Auth", "value": SECRET}]}}
    container = {
        "name": "worker",
        "livenessProbe": probe,
        "readinessProbe": probe,
        "args": ["--user", "anna", "--password", SECRET, "--level", "info", f"--token=one\n{SECRET}"],
        "command": ["sh", "-c", f"run --password {SECRET}"],
        "lifecycle": {"preStop": {"exec": {"command": ["stop", "-apiKey", SECRET]}}},
    }
    shown = redacted(
        {"kind": "Pod", "metadata": {}, "spec": {"containers": [container], "initContainers": [container]}}
    )
    assert SECRET not in json.dumps(shown)
    kept = shown["spec"]["containers"][0]
    assert kept["args"][:4] == ["--user", "anna", "--password", "(redacted)"]
    assert kept["args"][4:6] == ["--level", "info"]
    assert kept["livenessProbe"]["httpGet"]["httpHeaders"][0]["name"] == "X-Auth"


@pytest.mark.parametrize("key", ["apiKey", "secretKey", "accountKey", "shop.example/storage-key", "tokenPath"])
def test_key_in_a_free_map_is_hidden(key: str) -> None:
    volume = {"name": "data", "csi": {"driver": "blob", "volumeAttributes": {key: SECRET, "share": "data"}}}
    shown = redacted({"kind": "Pod", "metadata": {"annotations": {key: SECRET}}, "spec": {"volumes": [volume]}})
    assert SECRET not in json.dumps(shown)
    assert shown["spec"]["volumes"][0]["csi"]["volumeAttributes"]["share"] == "data"


def test_annotations_of_other_tools_with_manifests_are_left_out() -> None:
    manifest = json.dumps({"spec": {"value": SECRET}})
    annotations = {
        "kapp.k14s.io/original": manifest,
        "other/list": f' ["{SECRET}"]',
        "other/long": "x" * 256 + SECRET,
        "other/short": "kept",
        "consumerfleet.io/revision": '{"kept": 1}',
    }
    template = {"metadata": {"annotations": annotations}}
    shown = redacted({"kind": "StatefulSet", "metadata": {"annotations": annotations}, "spec": {"template": template}})
    assert SECRET not in json.dumps(shown)
    for kept in (shown["metadata"]["annotations"], shown["spec"]["template"]["metadata"]["annotations"]):
        assert kept["other/short"] == "kept"
        assert kept["consumerfleet.io/revision"] == '{"kept": 1}'


def test_number_of_a_telling_name_is_hidden() -> None:
    spec = {"password": 1234, "automountServiceAccountToken": False, "tokenExpirationSeconds": 600}
    assert redacted({"spec": spec})["spec"] == {**spec, "password": "(redacted)"}


def test_contents_of_config_maps_are_counted() -> None:
    body = {"kind": "ConfigMap", "metadata": {"name": "handler"}, "data": {"handler.py": SECRET}}
    assert redacted(body)["data"] == {"handler.py": "(10 characters)"}


@pytest.mark.parametrize("part", ["a", "://", "--", "token", "password", '"', "\\", "-a"])
def test_long_words_take_no_quadratic_time(part: str) -> None:
    text = part * (200_000 // len(part))
    assert redacted_text(text) == text
