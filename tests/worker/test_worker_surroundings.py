"""Errors outside a worker are reported, by the pre-flight check and by a running worker, and survived.

The check also reports whether the cause is the revision or its surroundings.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.local_cluster.daemons import free_ports
from tests.broker.workers import COMMAND, Fleet, Kafka
from tests.support.kafka import KafkaBroker
from tests.support.token_server import CLIENT_ID, CLIENT_SECRET, TokenServer, answer
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker(sasl_users={"alice": "alice-secret"}, tls=True, oauth=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def fleet(broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    folder = tmp_path_factory.mktemp("check")
    (folder / "username").write_text("alice")
    (folder / "password").write_text("wrong-secret")
    (folder / "later.py").write_text("async def handle(record): yield\n")
    (folder / "shares.py").write_text("class Half:\n    name = 'half'\n")
    (folder / "broken.py").write_text("import nowhere_at_all\n")
    return Fleet(Kafka(broker.bootstrap), folder, "checked")


def check(fleet: Fleet, **changes: Any) -> tuple[int, dict[str, Any]]:
    config = fleet.folder / "worker.json"
    config.write_text(json.dumps(fleet.settings(**changes)))
    done = subprocess.run(
        [COMMAND, "check", "--config", str(config)], capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_revision_that_can_work_passes_without_joining_the_group(fleet: Fleet) -> None:
    code, result = check(fleet)
    assert (code, result["ok"], result["reason"]) == (0, True, "CheckPassed")
    assert fleet.kafka.committed("checked", "checked") == {}


@pytest.mark.parametrize(
    ("changes", "reason", "text"),
    [
        ({"handler__python__callable": "missing:handle"}, "HandlerImportFailed", "missing"),
        ({"handler__python__callable": "broken:handle"}, "HandlerImportFailed", "broken.py, line 1"),
        ({"handler__python__callable": "handler:hanlde"}, "HandlerNotCallable", "handle"),
        ({"handler__python__callable": "later:handle"}, "HandlerNotCallable", "asynchronous generator"),
        ({"consumer__assignors": ["fairest"]}, "SettingsInvalid", "fairest"),
        ({"consumer__assignors": ["shares:Gone"]}, "SettingsInvalid", "Gone"),
        ({"consumer__assignors": ["broken:Mine"]}, "SettingsInvalid", "nowhere_at_all"),
        ({"consumer__assignors": ["shares:Half"]}, "SettingsInvalid", "shares:Half"),
        ({"topics": [], "topicPattern": "(orders"}, "SettingsInvalid", "topicPattern"),
        ({"consumer__properties": {"plugin.library.paths": "x"}}, "SettingsInvalid", "plugin.library.paths"),
        ({"consumer__properties": {"fetch.min.bytes": "many"}}, "SettingsInvalid", "fetch.min.bytes"),
        ({"topics": ["no spaces allowed"]}, "SettingsInvalid", "no spaces allowed"),
    ],
)
def test_errors_of_a_revision_exit_20(fleet: Fleet, changes: dict[str, Any], reason: str, text: str) -> None:
    code, result = check(fleet, **changes)
    assert (code, result["ok"], result["reason"]) == (20, False, reason)
    assert text in result["message"]


def test_missing_topics_are_reported_and_exit_21(fleet: Fleet) -> None:
    code, result = check(fleet, topics=["checked", "not-yet"])
    assert (code, result["reason"]) == (21, "TopicNotFound")
    assert "'not-yet'" in result["message"]
    code, result = check(fleet, handler__outputs=["nor-this"])
    assert (code, result["reason"]) == (21, "TopicNotFound")
    assert "handler.outputs" in result["message"]
    assert "nor-this" not in fleet.kafka.topics(), "asking for a topic must not create it"


def test_unreachable_broker_is_reported_and_exits_21(fleet: Fleet) -> None:
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    code, result = check(fleet, connection__bootstrapServers=[nobody])
    assert (code, result["reason"]) == (21, "BrokerUnreachable")
    assert nobody in result["message"]


def test_wrong_password_is_reported_without_the_password_and_exits_21(fleet: Fleet, broker: KafkaBroker) -> None:
    changes = {
        "connection__bootstrapServers": [broker.sasl_bootstrap],
        "connection__sasl": {
            "mechanism": "SCRAM-SHA-512",
            "directory": str(fleet.folder),
            "identity": None,
            "oauth": None,
        },
    }
    code, result = check(fleet, **changes)
    assert (code, result["reason"]) == (21, "AuthenticationFailed")
    assert "alice" in result["message"]
    assert "wrong-secret" not in result["message"]
    (fleet.folder / "password").write_text("alice-secret")
    assert check(fleet, **changes)[0] == 0


def test_worker_connects_with_a_token_over_tls(fleet: Fleet, broker: KafkaBroker, tmp_path: Path) -> None:
    (tmp_path / "clientId").write_text(CLIENT_ID)
    (tmp_path / "clientSecret").write_text("wrong-secret")
    with TokenServer(lambda asked: answer(broker.issuer.token(asked.client_id))) as tokens:
        changes = {
            "connection__bootstrapServers": [broker.sasl_tls_bootstrap],
            "connection__tls": {"caFile": broker.pki.ca_file, "certFile": None, "keyFile": None},
            "connection__sasl": {
                "mechanism": "OAUTHBEARER",
                "directory": str(tmp_path),
                "identity": None,
                "oauth": {"tokenEndpoint": tokens.url, "scope": None},
            },
        }
        code, result = check(fleet, **changes)
        assert (code, result["reason"]) == (21, "AuthenticationFailed")
        assert f"refuses client '{CLIENT_ID}' a token" in result["message"]
        assert "wrong-secret" not in result["message"]
        (tmp_path / "clientSecret").write_text(CLIENT_SECRET)
        assert check(fleet, **changes)[0] == 0


def test_untrusted_broker_is_reported_and_exits_21(fleet: Fleet, broker: KafkaBroker) -> None:
    changes = {
        "connection__bootstrapServers": [broker.tls_bootstrap],
        "connection__tls": {"caFile": None, "certFile": None, "keyFile": None},
    }
    code, result = check(fleet, **changes)
    assert (code, result["reason"]) == (21, "TlsFailed")
    assert "check that the CA file contains the CA that signed it" in result["message"]


def test_missing_credentials_are_reported_by_path(fleet: Fleet, tmp_path: Path) -> None:
    code, result = check(
        fleet, connection__sasl={"mechanism": "PLAIN", "directory": str(tmp_path), "identity": None, "oauth": None}
    )
    assert (code, result["reason"]) == (21, "AuthenticationFailed")
    assert str(tmp_path / "username") in result["message"]


def test_settings_that_are_not_json_are_refused(tmp_path: Path) -> None:
    broken = tmp_path / "worker.json"
    broken.write_text("{")
    done = subprocess.run(
        [COMMAND, "check", "--config", str(broken)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, json.loads(done.stdout)["reason"]) == (20, "SettingsInvalid")
    run = subprocess.run(
        [COMMAND, "run", "--config", str(broken)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (run.returncode, json.loads(run.stdout)["reason"]) == (20, "SettingsInvalid")


def test_wrong_password_is_reported_and_corrected_without_a_restart(broker: KafkaBroker, tmp_path: Path) -> None:
    fleet = Fleet(Kafka(broker.bootstrap), tmp_path, "secret")
    (tmp_path / "username").write_text("alice")
    (tmp_path / "password").write_text("wrong-secret")
    connection = {
        "bootstrapServers": [broker.sasl_bootstrap],
        "tls": None,
        "sasl": {"mechanism": "PLAIN", "directory": str(tmp_path), "identity": None, "oauth": None},
    }
    with fleet.worker(connection=connection) as worker:
        message = worker.wait_error("AuthenticationFailed")
        assert "alice" in message
        assert "wrong-secret" not in message + worker.log.read_text()
        assert worker.get("/readyz")[0] == 503
        (tmp_path / "password").write_text("alice-secret")
        fleet.send_many(100)
        fleet.wait_committed()
        assert "alice-secret" not in worker.log.read_text()


def test_worker_waits_for_an_unreachable_broker_and_starts_when_it_returns(broker: KafkaBroker, tmp_path: Path) -> None:
    fleet = Fleet(Kafka(broker.bootstrap), tmp_path, "early")
    broker.stop()
    with fleet.worker() as worker:
        eventually(lambda: worker.member()["error"], what="the broker's absence to be reported")
        assert worker.get("/readyz")[0] == 503
        assert worker.get("/healthz")[0] == 200
        broker.start()
        worker.wait_ready(60)
        fleet.send_many(100)
        fleet.wait_committed()
        broker.stop()
        eventually(lambda: worker.member()["error"], what="the broker's absence to be reported again")
        broker.start()
        worker.wait_ready(60)
        fleet.send_many(100)
        fleet.wait_committed()
        assert worker.terminate() == 0
    assert set(fleet.origins_done()) == set(fleet.origins_in())
