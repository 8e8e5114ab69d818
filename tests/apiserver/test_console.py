"""The console of a real operator: the API server decides who sees what."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPResponse

import pytest

from fleet_operator.console.access import TOKEN_SECONDS
from tests.apiserver import objects
from tests.apiserver.client import Client
from tests.apiserver.conftest import PATIENCE_S, Operator
from tests.support.apiserver import ApiServer
from tests.support.waiting import eventually

SHOP, BANK = "console-shop", "console-bank"
ROLE = "console-viewer"


@dataclass(frozen=True)
class Console:
    """A running console, and an API server on which account `viewer` may read objects of namespace SHOP only."""

    api: ApiServer
    url: str

    def token(self) -> str:
        return self.api.kubectl("-n", SHOP, "create", "token", "viewer").strip()

    def open(self, path: str, token: str) -> HTTPResponse:
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {token}"})
        answer: HTTPResponse = urllib.request.urlopen(request, timeout=60)
        return answer

    def page(self, path: str, token: str) -> str:
        with self.open(path, token) as answer:
            return answer.read().decode()

    def status(self, path: str, token: str) -> int:
        try:
            with self.open(path, token) as answer:
                return 303 if answer.url.endswith("/login") else int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code


@pytest.fixture(scope="module")
def console(quiet_api: ApiServer) -> Iterator[Console]:
    with Client(quiet_api.kubeconfig) as client:
        for name in (SHOP, BANK):
            client.apply(objects.namespace(name))
            client.apply(objects.group(name, name=f"fleet-of-{name}"))
    api = quiet_api
    api.kubectl("-n", SHOP, "create", "serviceaccount", "viewer")
    kinds = "consumergroups.consumerfleet.io,backfills.consumerfleet.io"
    api.kubectl("-n", SHOP, "create", "role", ROLE, "--verb=get,list", f"--resource={kinds}")
    api.kubectl("-n", SHOP, "create", "rolebinding", ROLE, f"--role={ROLE}", f"--serviceaccount={SHOP}:viewer")
    flags = ("--console=true", "--console-port", "0", "--namespace", SHOP, "--namespace", BANK)
    with Operator(api, *flags, identity="console") as operator:
        eventually(lambda: "working" in operator.log.read_text(), timeout_s=PATIENCE_S, what="the operator to work")
        (port,) = re.findall(r"console_port=(\d+)", operator.log.read_text())
        yield Console(api, f"http://127.0.0.1:{port}")


def test_account_of_one_namespace_sees_only_it_in_list_page_and_stream(console: Console) -> None:
    token = console.token()
    page = console.page("/", token)
    assert f"fleet-of-{SHOP}" in page
    assert BANK not in page
    for tab in ("", "/retries", "/scaling", "/backfills"):
        assert console.status(f"/fleets/{SHOP}/fleet-of-{SHOP}{tab}", token) == 200
        assert console.status(f"/fleets/{BANK}/fleet-of-{BANK}{tab}", token) == 403
        assert console.status(f"/stream/fleets/{BANK}/fleet-of-{BANK}{tab}", token) == 403
    with console.open("/stream/", token) as stream:
        seen = next(line for line in iter(stream.readline, b"") if line.startswith(b"data: ")).decode()
    assert f"fleet-of-{SHOP}" in json.loads(seen.removeprefix("data: "))
    assert BANK not in seen


def test_nobody_gets_in_without_a_token_of_this_api_server(console: Console) -> None:
    token = console.token()
    header, body, signature = token.split(".")
    for forged in ("nonsense", f"{header}.{body}.{signature[::-1]}", f"{header}.{body}."):
        assert console.status("/", forged) == 303
        assert console.status("/stream/", forged) == 401


def test_withdrawn_right_and_deleted_account_end_an_open_page(console: Console) -> None:
    """The right counts for at most ten seconds, the token for at most a minute."""
    token = console.token()
    with console.open(f"/stream/fleets/{SHOP}/fleet-of-{SHOP}", token) as stream:
        assert stream.readline() == b"event: fragment\n"
        console.api.kubectl("-n", SHOP, "delete", "rolebinding", ROLE)
        assert any(line == b"event: end\n" for line in iter(stream.readline, b""))
    assert console.status(f"/fleets/{SHOP}/fleet-of-{SHOP}", token) == 403
    assert f"fleet-of-{SHOP}" not in console.page("/", token)
    console.api.kubectl("-n", SHOP, "delete", "serviceaccount", "viewer")
    eventually(
        lambda: console.status("/", token) == 303, timeout_s=TOKEN_SECONDS + PATIENCE_S, what="the token to be refused"
    )
