"""Credentials in a worker's pod: keys of Secrets, whatever they are called, under the file names that workers read."""

from __future__ import annotations

import json

from fleet_operator.api.v1alpha1 import KafkaCluster
from fleet_operator.planning.fleet.revision import plan_revision
from tests.unit.planning.builders import IMAGE, consumer_group, kafka_cluster
from tests.unit.planning.fleet.test_manifests import LOGIN, OAUTH, SASL, TLS


def mounted(cluster: KafkaCluster) -> dict[str, tuple[str, str]]:
    """Secret and key behind each credential in the settings volume, by path."""
    revision = plan_revision(consumer_group(), cluster, handler_files=None, image=IMAGE)
    sources = revision.pod_template["spec"]["volumes"][0]["projected"]["sources"]
    secrets = [source["secret"] for source in sources if "secret" in source]
    return {item["path"]: (secret["name"], item["key"]) for secret in secrets for item in secret["items"]}


def test_chosen_keys_are_mounted_under_fixed_names() -> None:
    user = {"name": "shop", "certKey": "user.crt", "keyKey": "user.key"}
    found = mounted(
        kafka_cluster(tls={"caSecretRef": {"name": "my-cluster-cluster-ca-cert"}, "clientCertSecretRef": user})
    )
    assert found == {
        "tls/ca.crt": ("my-cluster-cluster-ca-cert", "ca.crt"),
        "tls/tls.crt": ("shop", "user.crt"),
        "tls/tls.key": ("shop", "user.key"),
    }
    login = {"name": "login", "usernameKey": "both", "passwordKey": "both"}
    assert mounted(kafka_cluster(sasl={"mechanism": "PLAIN", "secretRef": login})) == {
        "credentials/username": ("login", "both"),
        "credentials/password": ("login", "both"),
    }
    login = {"name": "login", "clientIdKey": "id", "clientSecretKey": "s"}
    assert mounted(kafka_cluster(sasl=OAUTH | {"secretRef": login})) == {
        "credentials/clientId": ("login", "id"),
        "credentials/clientSecret": ("login", "s"),
    }


def test_user_name_of_the_spec_needs_no_key() -> None:
    """A Strimzi KafkaUser's Secret holds the password only."""
    cluster = kafka_cluster(
        sasl={"mechanism": "SCRAM-SHA-512", "username": "shop", "secretRef": {"name": "shop"}},
    )
    assert mounted(cluster) == {"credentials/password": ("shop", "password")}
    config = plan_revision(consumer_group(), cluster, handler_files=None, image=IMAGE).worker_config
    assert config["connection"]["sasl"] == LOGIN | {"mechanism": "SCRAM-SHA-512", "identity": "shop"}
    oauth = {"tokenEndpoint": "https://login.example/token", "clientId": "fleet"}
    assert mounted(kafka_cluster(sasl=OAUTH | {"oauth": oauth})) == {
        "credentials/clientSecret": ("login", "clientSecret")
    }


def test_secret_with_authorities_under_any_key_is_mounted_as_a_whole() -> None:
    """Nobody knows the names under which Strimzi keeps old authorities, and a new one must not roll the fleet."""
    cluster = kafka_cluster(tls={"caSecretRef": {"name": "cluster-ca", "pattern": "*.crt"}})
    assert mounted(cluster) == {}
    revision = plan_revision(consumer_group(), cluster, handler_files=None, image=IMAGE)
    volume = {"name": "consumer-fleet-authorities", "secret": {"secretName": "cluster-ca", "defaultMode": 0o440}}
    assert volume in revision.pod_template["spec"]["volumes"]
    (worker,) = revision.pod_template["spec"]["containers"]
    mount = {"name": volume["name"], "mountPath": "/etc/fleet/authorities", "readOnly": True}
    assert mount in worker["volumeMounts"]
    assert revision.worker_config["connection"]["tls"]["caFile"] == "/etc/fleet/authorities/*.crt"


def test_mounted_secrets_are_renewed_in_running_pods() -> None:
    """The kubelet renews a projected volume as a whole, but never what is mounted by `subPath` or as a variable."""
    cluster = kafka_cluster(tls=TLS, sasl=SASL)
    revision = plan_revision(consumer_group(), cluster, handler_files=None, image=IMAGE)
    (volume,) = [each for each in revision.pod_template["spec"]["volumes"] if "projected" in each]
    secrets = [source["secret"]["name"] for source in volume["projected"]["sources"] if "secret" in source]
    assert len(secrets) == 3
    (worker,) = revision.pod_template["spec"]["containers"]
    (mount,) = [each for each in worker["volumeMounts"] if each["name"] == volume["name"]]
    assert not {"subPath", "subPathExpr"} & mount.keys()
    assert not [each for each in worker["env"] if "secretKeyRef" in each.get("valueFrom", {})]


def test_client_credentials_for_tokens_are_mounted_with_their_endpoint() -> None:
    cluster = kafka_cluster(tls=TLS, sasl=OAUTH)
    revision = plan_revision(consumer_group(), cluster, handler_files=None, image=IMAGE)
    volume = json.dumps(revision.pod_template["spec"]["volumes"])
    assert '"credentials/clientId"' in volume
    assert '"credentials/clientSecret"' in volume
    assert "password" not in volume
    assert revision.worker_config["connection"]["sasl"] == {
        "mechanism": "OAUTHBEARER",
        "directory": "/etc/consumer-fleet/credentials",
        "identity": None,
        "oauth": {"tokenEndpoint": "https://login.example/token", "scope": None},
    }
