"""Every failure is reported within half a minute, by a condition with its reason, and is then not rewritten."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fleet_consumer.contract.pod import EXIT_SURROUNDINGS
from tests.apiserver import objects
from tests.apiserver.conftest import PATIENCE_S, Site, make_topic
from tests.apiserver.nodes import Answer, Nodes
from tests.support.apiserver import ApiServer
from tests.support.kafka import KafkaBroker
from tests.support.kafka_security import BrokerPki
from tests.support.token_server import CLIENT_ID, CLIENT_SECRET, TokenServer, answer
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("operator")

TOLD_WITHIN_S = 30.0
AT_REST_S = 8.0
WORDING = "wording"
WRONG = "not-her-secret"
CALM_S = 62
"""A little more than a minute, in which each object may be written at most once."""


IMPOSSIBLE = {"spec": {"containers": [{"name": "worker", "volumeMounts": [{"name": "nowhere", "mountPath": "/a"}]}]}}
"""A mount of a volume that the template does not have: the schema takes it, and no pod can have it."""


@dataclass(frozen=True)
class Case:
    """One failure, in its own namespace; the group's `Ready` must have `reason` and contain `hint`."""

    name: str
    reason: str
    hint: str
    bodies: Callable[[str], list[dict[str, Any]]]

    @property
    def answer(self) -> Answer | None:
        """The answer of a check that asks Kafka. The stand-in for nodes knows handlers only, and would let it pass."""
        asks = self.reason in ("TopicNotFound", "AuthenticationFailed", "BrokerUnreachable")
        return Answer(EXIT_SURROUNDINGS, self.reason, self.hint) if asks else None


@contextmanager
def silent() -> Iterator[int]:
    """The port of a hanging broker: the kernel accepts connections, and nothing ever answers."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=64)) as listening:
        yield listening.getsockname()[1]


@contextmanager
def closed() -> Iterator[int]:
    """The port of an unreachable broker: bound, so that no other process gets it, but not listening."""
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@contextmanager
def own_broker() -> Iterator[KafkaBroker]:
    """A broker whose number of groups does not change, because the KafkaCluster's status contains it."""
    with KafkaBroker(sasl_users={"alice": "alice-secret"}) as broker:
        make_topic(broker, "flights")
        yield broker


def cases(broker: KafkaBroker, silent_port: int, closed_port: int) -> list[Case]:
    def with_cluster(bootstrap: str, **spec: Any) -> Callable[[str], list[dict[str, Any]]]:
        return lambda n: [objects.handler_source(n), objects.cluster(n, bootstrap, **spec), objects.group(n)]

    def with_secret(*, password: str, labelled: bool) -> Callable[[str], list[dict[str, Any]]]:
        make = with_cluster(broker.sasl_bootstrap, sasl=objects.sasl("alice"))
        return lambda n: [objects.secret(n, "alice", password=password, labelled=labelled), *make(n)]

    def with_group(**spec: Any) -> Callable[[str], list[dict[str, Any]]]:
        return lambda n: [
            objects.handler_source(n),
            objects.cluster(n, broker.bootstrap),
            objects.group(n, **spec),
        ]

    def without_container(n: str) -> list[dict[str, Any]]:
        served = objects.group(n)
        served["spec"]["handler"] = {"http": {}}
        return [objects.cluster(n, broker.bootstrap), served]

    missing_secret = with_cluster(broker.sasl_bootstrap, sasl=objects.sasl("nobody"))
    return [
        Case("cluster", "ClusterNotFound", "main", lambda n: [objects.handler_source(n), objects.group(n)]),
        Case("topic", "TopicNotFound", "no-such-topic", with_group(topics=["no-such-topic"])),
        Case("output", "TopicNotFound", "no-output", with_group(handler={"outputs": ["no-output"]})),
        Case("password", "AuthenticationFailed", "alice", with_secret(password=WRONG, labelled=True)),
        Case(
            "label", "SecretNotLabelled", "consumerfleet.io/credentials=true", with_secret(password="x", labelled=False)
        ),
        Case("secret", "SecretNotFound", "nobody", missing_secret),
        Case("away", "BrokerUnreachable", str(closed_port), with_cluster(f"127.0.0.1:{closed_port}")),
        Case("hung", "BrokerUnreachable", str(silent_port), with_cluster(f"127.0.0.1:{silent_port}")),
        Case("handler", "HandlerNotCallable", "no `missing`", with_group(callable_="handler:missing")),
        Case("mount", "RefusedByApiServer", "nowhere", with_group(template=IMPOSSIBLE)),
        Case("source", "HandlerSourceNotFound", "handler", lambda n: with_group()(n)[1:]),
        Case("container", "HandlerContainerNotFound", "handler", without_container),
    ]


class WriteRecorder:
    """Records the writes to the objects of one kind for a while, from a watch of the API server."""

    def __init__(self, api: ApiServer, plural: str) -> None:
        path = f"/apis/consumerfleet.io/v1alpha1/{plural}"
        listed = json.loads(api.kubectl("get", "--raw", path))
        self._before = {body["metadata"]["namespace"]: body for body in listed["items"]}
        version = listed["metadata"]["resourceVersion"]
        watch = f"{path}?watch=1&resourceVersion={version}&timeoutSeconds={CALM_S}"
        command = [str(api._kubectl), "--kubeconfig", str(api.kubeconfig), "get", "--raw", watch]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def finish(self) -> dict[str, list[str]]:
        """Wait for the watch to end; return for each namespace and write the fields that it changed."""
        output, _ = self._process.communicate(timeout=CALM_S + 30)
        writes: dict[str, list[str]] = defaultdict(list)
        for event in (json.loads(line) for line in output.splitlines()):
            body = event["object"]
            namespace = body["metadata"]["namespace"]
            if event["type"] == "MODIFIED":
                writes[namespace].append(changed(self._before.get(namespace, {}), body))
            self._before[namespace] = body
        return dict(writes)


def changed(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The parts of an object that differ, with their new values; `WORDING` if only messages of conditions do."""
    parts = {
        f"{part}.{key}": value
        for part in ("spec", "status")
        for key, value in after.get(part, {}).items()
        if value != before.get(part, {}).get(key)
    }
    if parts.keys() == {"status.conditions"}:
        old, new = (without_messages(body.get("status", {}).get("conditions", [])) for body in (before, after))
        return WORDING if old == new else json.dumps(parts)
    return json.dumps(parts or after["metadata"])


def without_messages(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry | {"message": ""} for entry in entries]


@pytest.mark.timeout(900)
def test_every_failure_is_reported_in_time_and_then_writes_stop(
    site: Callable[..., Site], api: ApiServer, nodes: Nodes
) -> None:
    """All cases side by side with a healthy fleet; then a minute in which each object is written at most once.

    No other test runs next to it, because it holds the operator to times.
    """
    with own_broker() as broker, silent() as silent_port, closed() as closed_port:
        sites = {}
        for case in cases(broker, silent_port, closed_port):
            here = sites[case] = site(f"failing-{case.name}")
            if case.answer is not None:
                nodes.answers[here.name] = case.answer
            here.apply(*case.bodies(here.name))
        healthy = site("healthy")
        healthy.apply(objects.handler_source(healthy.name), objects.cluster(healthy.name, broker.bootstrap))
        healthy.apply(objects.group(healthy.name))
        for case, here in sites.items():
            condition = here.wait_condition(
                "consumergroups", "flights", "Ready", status="False", reason=case.reason, timeout_s=TOLD_WITHIN_S
            )
            assert case.hint in condition["message"], condition
            assert here.names("statefulsets") == [], f"{case.name}: no worker of a fleet that cannot run"
        healthy.wait_ready_replicas(1)
        wait_recorded(healthy)
        wait_at_rest(healthy)
        recorders = {plural: WriteRecorder(api, plural) for plural in ("consumergroups", "kafkaclusters")}
        recorded = {plural: recorder.finish() for plural, recorder in recorders.items()}
        names = {here.name for here in (*sites.values(), healthy)}
        for plural, writes in recorded.items():
            busy = {name: made for name, made in writes.items() if name in names and len(made) > 1}
            assert busy == {}, f"{plural} were written more than once in {CALM_S} s"
            # The wording of its start may be written now: that waits for a minute since the write before.
            beyond = [made for made in writes.get(healthy.name, []) if made != WORDING]
            assert beyond == [], f"the healthy fleet's {plural} were written"
        every = ("get", "consumergroups,kafkaclusters,events", "--all-namespaces", "--output", "yaml")
        assert WRONG not in api.kubectl(*every)


def wait_recorded(here: Site) -> None:
    """Wait until the fleet's revision is recorded as good."""
    revision = here.get("statefulsets", "flights-fleet")["metadata"]["annotations"]["consumerfleet.io/revision"]

    def recorded() -> bool:
        verdicts = here.get("operatorstates", "flights.consumergroup")["data"]["fleet"]["verdicts"]
        return bool(verdicts[revision].get("state") == "Good")

    eventually(recorded, timeout_s=PATIENCE_S, what="the healthy fleet to settle")


def wait_at_rest(here: Site) -> None:
    """Wait until the remaining writes of the fleet's start are done: routine writes come five seconds apart."""
    seen, since = "", time.monotonic()

    def at_rest() -> bool:
        nonlocal seen, since
        bodies = here.get("consumergroups", "flights"), here.get("kafkaclusters", "main")
        versions = "/".join(body["metadata"]["resourceVersion"] for body in bodies)
        if versions != seen:
            seen, since = versions, time.monotonic()
        # Of a topic just made the count comes when its leader is known everywhere, on a slow machine after a while.
        status = bodies[0].get("status", {})
        known = "failed" in (status.get("retry") or {}) and "coordinator" in status
        return known and time.monotonic() - since > AT_REST_S

    eventually(at_rest, timeout_s=PATIENCE_S, what="nothing more to be written of the healthy fleet")


@pytest.mark.together
def test_corrected_secret_is_applied(site: Callable[..., Site], broker: KafkaBroker) -> None:
    here = site("fixed")
    here.apply(objects.secret(here.name, "alice", password="wrong"))
    here.apply(objects.cluster(here.name, broker.sasl_bootstrap, sasl=objects.sasl("alice")))
    here.wait_condition("kafkaclusters", "main", "Ready", status="False", reason="AuthenticationFailed")
    assert "wrong" not in json.dumps(here.status("kafkaclusters", "main")).replace("wrong password", "")
    here.apply(objects.secret(here.name, "alice", password="alice-secret"))
    here.wait_condition("kafkaclusters", "main", "Ready", status="True", reason="Reached")


@pytest.mark.together
def test_renewed_certificates_and_client_credentials_are_applied(
    site: Callable[..., Site], broker: KafkaBroker, tmp_path: Path
) -> None:
    """A cluster with TLS and OAUTHBEARER; its two Secrets are wrong at first and corrected one after the other.

    The first authority is the token endpoint's alone, and the broker's joins it.
    """
    here = site("renewed")
    pki = BrokerPki(tmp_path / "pki")
    endpoints_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    endpoints_tls.load_cert_chain(*pki.authority.issue("tokens", "tokens", names=("IP:127.0.0.1",)))

    def secrets(*ca_files: str, client_secret: str) -> None:
        values = {
            "authority": {"ca.crt": "".join(Path(file).read_text() for file in ca_files)},
            "client": {"clientId": CLIENT_ID, "clientSecret": client_secret},
        }
        for name, data in values.items():
            here.apply(objects.secret(here.name, name, password="") | {"stringData": data})

    with TokenServer(lambda asked: answer(broker.issuer.token(asked.client_id)), endpoints_tls) as tokens:
        secrets(pki.ca_file, client_secret="wrong-secret")
        login = {
            "mechanism": "OAUTHBEARER",
            "secretRef": {"name": "client"},
            "oauth": {"tokenEndpoint": tokens.url, "scope": "kafka"},
        }
        tls = {"caSecretRef": {"name": "authority"}}
        here.apply(objects.cluster(here.name, broker.sasl_tls_bootstrap, sasl=login, tls=tls))
        condition = here.wait_condition("kafkaclusters", "main", "Ready", status="False", reason="AuthenticationFailed")
        assert "check client id, client secret and scope" in condition["message"]
        secrets(pki.ca_file, client_secret=CLIENT_SECRET)
        condition = here.wait_condition("kafkaclusters", "main", "Ready", status="False", reason="TlsFailed")
        assert "check that the CA file contains the CA that signed it" in condition["message"]
        secrets(pki.ca_file, broker.pki.ca_file, client_secret=CLIENT_SECRET)
        here.wait_condition("kafkaclusters", "main", "Ready", status="True", reason="Reached")
        assert "secret" not in json.dumps(here.status("kafkaclusters", "main"))


@pytest.mark.together
def test_missing_references_are_applied_once_created(site: Callable[..., Site], broker: KafkaBroker) -> None:
    here = site("late")
    here.apply(objects.group(here.name))
    here.wait_condition("consumergroups", "flights", "Ready", status="False", reason="ClusterNotFound")
    here.apply(objects.cluster(here.name, broker.bootstrap))
    here.wait_condition("consumergroups", "flights", "Ready", status="False", reason="HandlerSourceNotFound")
    here.apply(objects.handler_source(here.name))
    here.wait_ready_replicas(1)


@pytest.mark.together
def test_template_that_no_pod_can_have_is_refused_before_any_pod_runs(
    site: Callable[..., Site], broker: KafkaBroker
) -> None:
    here = site("impossible")
    here.apply(objects.handler_source(here.name), objects.cluster(here.name, broker.bootstrap))
    here.apply(objects.group(here.name, template=IMPOSSIBLE))
    condition = here.wait_condition("consumergroups", "flights", "Ready", status="False", reason="RefusedByApiServer")
    assert "nowhere" in condition["message"], condition
    assert here.names("pods") == []
    assert here.names("statefulsets") == []
