"""User names and passwords that change while clients exist: the next login uses the present ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Consumer

from fleet_consumer.contract.brokers import SaslSource, TokenEndpoint
from fleet_consumer.librdkafka.settings import Login, connection_config, resolved
from fleet_consumer.net import ConnectionSettings, OAuthSettings, SaslSettings
from fleet_consumer.worker.config.settings import CredentialsUnreadable, MountedLogin
from tests.support.token_server import CLIENT_ID, CLIENT_SECRET, TokenServer, answer

SOURCE = {"mechanism": "SCRAM-SHA-512", "identity": None, "oauth": None}


class Client:
    """Stands where librdkafka's consumer or producer stands."""

    def __init__(self) -> None:
        self.given: list[tuple[str, str]] = []

    def set_sasl_credentials(self, username: str, password: str) -> None:
        self.given.append((username, password))


def mounted(folder: Path, **changes: Any) -> MountedLogin:
    (folder / "username").write_text("alice")
    (folder / "password").write_text("first\n")
    return MountedLogin(SaslSource(**{**SOURCE, "directory": str(folder), **changes}))


def connection(login: MountedLogin) -> ConnectionSettings:
    name, password = login()
    sasl = SaslSettings(mechanism="SCRAM-SHA-512", username=name, password=password, login_callback=login)
    return ConnectionSettings(bootstrap_servers=("127.0.0.1:1",), client_id="c", sasl=sasl)


def test_present_password_is_used_for_each_login(tmp_path: Path) -> None:
    settings = connection(mounted(tmp_path)).sasl
    assert settings is not None
    assert settings.current().password == "first"
    (tmp_path / "password").write_text("second")
    assert settings.current().password == "second"
    assert "second" not in repr(settings.current())


def test_files_that_cannot_be_read_leave_the_last_password(tmp_path: Path) -> None:
    """The kubelet swaps all files at once, but a Secret may lose a key."""
    login = mounted(tmp_path)
    (tmp_path / "password").unlink()
    assert login() == ("alice", "first")


@pytest.mark.parametrize("content", [b"", b"\n", "alice".encode("utf-16-le"), b"\xff\xfe"])
@pytest.mark.parametrize("name", ["username", "password"])
def test_unusable_value_leaves_the_last_login_and_is_no_mistake_of_the_settings(
    tmp_path: Path, name: str, content: bytes
) -> None:
    """The Secret's owner corrects it; a ValueError here would end the worker, or refuse its revision."""
    settings = connection(mounted(tmp_path)).sasl
    assert settings is not None
    (tmp_path / name).write_bytes(content)
    assert (settings.current().username, settings.current().password) == ("alice", "first")
    source = SaslSource(mechanism="SCRAM-SHA-512", directory=str(tmp_path), identity=None, oauth=None)
    with pytest.raises(CredentialsUnreadable, match=name):
        MountedLogin(source)


def test_name_of_the_settings_needs_no_file(tmp_path: Path) -> None:
    login = mounted(tmp_path, identity="shop")
    (tmp_path / "username").unlink()
    assert login() == ("shop", "first")


def test_librdkafkas_clients_are_given_a_changed_password_once(tmp_path: Path) -> None:
    config = connection_config(connection(mounted(tmp_path)))
    login, consumer, producer = Login(config), Client(), Client()
    clients = cast(Consumer, consumer), cast(Consumer, producer)
    login.renew(*clients)
    assert consumer.given == []
    (tmp_path / "password").write_text("second")
    login.renew(*clients)
    login.renew(*clients)
    assert consumer.given == producer.given == [("alice", "second")]


def test_client_that_is_made_later_has_the_present_password(tmp_path: Path) -> None:
    config = connection_config(connection(mounted(tmp_path)))
    (tmp_path / "password").write_text("second")
    given = resolved(config)
    assert (given["sasl.username"], given["sasl.password"]) == ("alice", "second")
    Consumer({**given, "group.id": "g", "log_level": 0}).close()


def test_settings_without_files_keep_their_password() -> None:
    sasl = SaslSettings(mechanism="PLAIN", username="alice", password="first")
    assert sasl.current() is sasl
    config = connection_config(ConnectionSettings(bootstrap_servers=("127.0.0.1:1",), client_id="c", sasl=sasl))
    client = Client()
    Login(config).renew(cast(Consumer, client))
    assert client.given == []
    assert resolved(config) == config


def test_next_token_is_asked_with_the_present_secret(tmp_path: Path) -> None:
    (tmp_path / "clientId").write_text(CLIENT_ID)
    (tmp_path / "clientSecret").write_text("wrong")
    with TokenServer(lambda asked: answer("token", 60.0)) as server:
        endpoint = TokenEndpoint(url=server.url, scope=None)
        source = SaslSource(mechanism="OAUTHBEARER", directory=str(tmp_path), identity=None, oauth=endpoint)
        oauth = OAuthSettings(token_endpoint=server.url, client_id=CLIENT_ID, client_secret="wrong")
        settings = SaslSettings(mechanism="OAUTHBEARER", oauth=oauth, login_callback=MountedLogin(source))
        assert settings.current() is settings
        assert settings.tokens is not None
        (tmp_path / "clientSecret").write_text(CLIENT_SECRET)
        assert settings.tokens.wait(30.0).value == "token"
