"""Requests to the API server over HTTP: repeated while it is away, with the token of the moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from fleet_consumer.backfill.api_server import API_URL, PATIENCE_S, ApiConflict, ApiFailed, ApiServer
from tests.support.clock import StillClock
from tests.support.config_map_server import ConfigMapServer


@pytest.fixture
def server() -> Iterator[ConfigMapServer]:
    with ConfigMapServer() as running:
        yield running


class Waits:
    """Passes time on a still clock; runs `then` at the given wait."""

    def __init__(self, clock: StillClock) -> None:
        self.clock = clock
        self.seconds: list[float] = []
        self.then = {0: lambda: None}

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.clock.now += seconds
        self.then.get(len(self.seconds), lambda: None)()


def client(url: str, account: Path) -> tuple[ApiServer, Waits]:
    clock = StillClock()
    waits = Waits(clock)
    return ApiServer("default", {API_URL: url}, clock, account=account, wait=waits), waits


def test_read_and_replace_with_resource_versions(server: ConfigMapServer, tmp_path: Path) -> None:
    server.put("one", {"a": "1"})
    api, _ = client(server.url, tmp_path)
    found = api.get("one")
    assert found["data"] == {"a": "1"}
    replaced = api.replace({**found, "data": {"a": "2"}})
    assert server.data("one") == {"a": "2"}
    with pytest.raises(ApiConflict):
        api.replace({**found, "data": {"a": "3"}})
    api.replace({**replaced, "data": {"a": "4"}})
    assert server.data("one") == {"a": "4"}


def test_server_that_comes_back_is_asked_again(server: ConfigMapServer, tmp_path: Path) -> None:
    server.put("one", {"a": "1"})
    api, waits = client(server.url, tmp_path)
    server.away = True

    def back() -> None:
        server.away = False

    waits.then = {5: back}
    assert api.get("one")["data"] == {"a": "1"}
    assert waits.seconds == [0.5, 1.0, 2.0, 4.0, 8.0]


def test_server_that_stays_away_ends_the_patience(server: ConfigMapServer, tmp_path: Path) -> None:
    api, waits = client(server.url, tmp_path)
    server.away = True
    with pytest.raises(ApiFailed, match="GET of ConfigMap one: no answer"):
        api.get("one")
    assert PATIENCE_S - 20 < sum(waits.seconds) <= PATIENCE_S


def test_missing_object_is_asked_for_briefly(server: ConfigMapServer, tmp_path: Path) -> None:
    api, waits = client(server.url, tmp_path)
    with pytest.raises(ApiFailed, match="404 NotFound"):
        api.get("none")
    assert sum(waits.seconds) <= 30


def test_without_any_address_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(ApiFailed, match="KUBERNETES_SERVICE_HOST"):
        ApiServer("default", {}, StillClock(), account=tmp_path).get("one")


def test_token_is_read_for_each_request_and_busy_servers_are_asked_again(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []
    answers = iter([429, 500, 200, 401, 200])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, self.headers["Authorization"]))
            (tmp_path / "token").write_text(f"token-{len(seen)}\n")
            body = b'{"message": "m"}'
            self.send_response(next(answers))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    (tmp_path / "token").write_text("token-0\n")
    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        api, _ = client(f"http://127.0.0.1:{http.server_address[1]}", tmp_path)
        api.get("one")
        api.get("one")
        http.shutdown()
        thread.join()
    assert [token for _, token in seen] == [f"Bearer token-{number}" for number in range(5)]
    assert seen[0][0] == "/api/v1/namespaces/default/configmaps/one"
