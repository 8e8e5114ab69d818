"""docs/strimzi.md: objects that the models read, the rights of the table, and the keys that Strimzi writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.strimzi import CLUSTER_CA_SECRET, CREDENTIALS_LABEL, Strimzi, scram_user
from fleet_operator.api.v1alpha1 import ConsumerGroup, KafkaCluster
from fleet_operator.api.v1alpha1.model import CustomResource
from tests.observe.test_rights import rights

PAGE = Path(__file__).parents[2] / "docs" / "strimzi.md"
MODELS: dict[str, type[CustomResource]] = {"KafkaCluster": KafkaCluster, "ConsumerGroup": ConsumerGroup}


def objects(kind: str) -> list[dict[str, Any]]:
    """The objects of a kind in the page's blocks, in order."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    found = [body for block in blocks for body in yaml.safe_load_all(block) if body]
    return [body for body in found if body["kind"] == kind]


@pytest.mark.parametrize("kind", MODELS)
def test_objects_can_be_read(kind: str) -> None:
    found = objects(kind)
    assert found
    for body in found:
        MODELS[kind].model_validate(body)


STAR = {"literal": "", "prefix": "*"}


def test_user_has_the_rights_of_the_table_and_no_other() -> None:
    (user,) = objects("KafkaUser")
    granted = {
        (operation, acl["resource"]["type"], acl["resource"]["name"] + STAR[acl["resource"]["patternType"]])
        for acl in user["spec"]["authorization"]["acls"]
        for operation in acl["operations"]
    }
    table = [*rights("workers"), *rights("operator")]
    assert granted == {(right.operation, right.kind, name) for right in table for name in right.names}


def test_every_secret_is_labelled() -> None:
    (kafka,), (user,), (certificate,) = objects("Kafka"), objects("KafkaUser"), objects("Certificate")
    assert kafka["spec"]["kafka"]["template"]["clusterCaCert"]["metadata"]["labels"] == CREDENTIALS_LABEL
    assert user["spec"]["template"]["secret"]["metadata"]["labels"] == CREDENTIALS_LABEL
    assert certificate["spec"]["secretTemplate"]["labels"] == CREDENTIALS_LABEL
    (secret,) = objects("Secret")
    assert secret["metadata"]["labels"] == CREDENTIALS_LABEL


def test_keys_are_those_of_strimzis_secrets(tmp_path: Path) -> None:
    by_certificate, by_password = (KafkaCluster.model_validate(body) for body in objects("KafkaCluster")[:2])
    strimzi = Strimzi(tmp_path)
    for cluster in (by_certificate, by_password):
        assert cluster.spec.tls
        assert cluster.spec.tls.ca_secret_ref
        assert (
            cluster.spec.tls.ca_secret_ref.name == CLUSTER_CA_SECRET == strimzi.cluster_ca_secret()["metadata"]["name"]
        )
    assert by_certificate.spec.tls
    reference = by_certificate.spec.tls.client_cert_secret_ref
    assert reference
    assert {reference.cert_key, reference.key_key} < strimzi.tls_user("orders")["data"].keys()
    sasl = by_password.spec.sasl
    assert sasl
    assert sasl.secret_keys == {"password": "password"}
    assert "password" in scram_user("orders", "x")["data"]
    (user,) = objects("KafkaUser")
    assert sasl.username == sasl.secret_ref.name == reference.name == user["metadata"]["name"]


def test_secrets_have_strimzis_shape(tmp_path: Path) -> None:
    """Keys as in Strimzi's sources; tests of the rotation rest on them."""
    strimzi = Strimzi(tmp_path)
    assert set(strimzi.tls_user("a")["data"]) == {"ca.crt", "user.crt", "user.key", "user.p12", "user.password"}
    assert set(scram_user("a", "b")["data"]) == {"password", "sasl.jaas.config"}
    assert set(strimzi.cluster_ca_secret()["data"]) == {"ca.crt", "ca.p12", "ca.password"}
    strimzi.replace_cluster_key()
    (old,) = set(strimzi.cluster_ca_secret()["data"]) - {"ca.crt", "ca.p12", "ca.password"}
    assert re.fullmatch(r"ca-\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}Z\.crt", old)
