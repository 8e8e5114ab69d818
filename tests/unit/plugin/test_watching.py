"""The thread that watches for `kubectl fleet top`: it never ends unseen, and never asks without a pause."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet_kubectl import api as api_module
from fleet_kubectl.api import Api, WatchExpired, open_api
from fleet_kubectl.errors import FleetError, NoCluster, RefusedByApiServer
from fleet_kubectl.live import Rows
from fleet_kubectl.top import AGAIN_MAX_S, AGAIN_S, Feed, watching
from fleet_operator.clients.kinds import CONSUMER_GROUP
from tests.unit.plugin.fleets import group
from tests.unit.plugin.kubelet_server import Server, kubeconfig, serving


class Enough(BaseException):
    """Ends the thread's loop."""


class Still:
    """A clock that stands, and moves only by `by`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Server, Api]]:
    with serving(tmp_path) as (server, config):
        server.objects["consumergroups"] = [group()]
        api = open_api(str(config), None, None)
        yield server, api
        api.close()


def pauses(api: Api, feed: Feed, count: int) -> list[float]:
    """The pauses of the thread until it has made so many."""
    found: list[float] = []

    def wait(seconds: float) -> None:
        found.append(seconds)
        if len(found) == count:
            raise Enough

    with pytest.raises(Enough):
        watching(api, "shop", Still(), wait)(feed)
    return found


def problem(feed: Feed) -> str:
    return feed.drain(Rows())[1] or ""


def event(kind: str, body: object) -> str:
    return json.dumps({"type": kind, "object": body}) + "\n"


def expired(code: int) -> str:
    return event("ERROR", {"code": code, "message": "the server is asked too often"})


@pytest.mark.parametrize("text", ['{"type": "MODI', "<html>\n", expired(500), "[]\n", event("MODIFIED", {})])
def test_watch_that_cannot_be_read_is_said_and_tried_again_after_longer_pauses(
    site: tuple[Server, Api], text: str
) -> None:
    server, api = site
    server.watches = [text] * 9
    feed = Feed(Still())
    assert pauses(api, feed, 6) == [AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S, 8 * AGAIN_S, AGAIN_MAX_S, AGAIN_MAX_S]
    assert problem(feed).startswith("for 0s: ")


@pytest.mark.parametrize(
    "text", ["<html>a proxy\x1b[31m</html>", '{"message', "[1]", pytest.param("[" * 100_000, id="deep")]
)
def test_refusal_that_is_not_json_is_an_error_of_one_safe_line(site: tuple[Server, Api], text: str) -> None:
    server, api = site
    server.refusals = [(502, text)] * 2
    with pytest.raises(RefusedByApiServer, match="502") as caught:
        api.list(CONSUMER_GROUP, "shop")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2000
    feed = Feed(Still())
    pauses(api, feed, 1)
    assert "RefusedByApiServer" in problem(feed)


@pytest.mark.parametrize("text", ["<html>welcome</html>", "[]", pytest.param("[" * 100_000, id="deep")])
def test_answer_that_is_not_json_is_an_error(site: tuple[Server, Api], text: str) -> None:
    server, api = site
    server.refusals = [(200, text)]
    with pytest.raises(NoCluster, match="prox"):
        api.list(CONSUMER_GROUP, "shop")


def test_watch_that_ends_at_once_is_opened_again_after_a_pause(site: tuple[Server, Api]) -> None:
    _, api = site
    assert pauses(api, Feed(Still()), 3) == [AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S]


def test_expired_watch_lists_at_once_but_not_in_a_circle(site: tuple[Server, Api]) -> None:
    server, api = site
    server.watches = [expired(410)] * 9
    feed = Feed(Still())
    assert pauses(api, feed, 1) == [AGAIN_S]
    assert (server.requests, len(server.watches)) == (4, 7)
    assert problem(feed) == ""
    with pytest.raises(WatchExpired):
        next(api.watch(CONSUMER_GROUP, "shop", "7"))


def test_error_of_the_socket_is_an_error_of_the_command(
    site: tuple[Server, Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, api = site

    def broken(*_: object, **__: object) -> None:
        raise ConnectionResetError("reset")

    monkeypatch.setattr(api._client, "call_api", broken)
    with pytest.raises(NoCluster, match="reset"):
        api.list(CONSUMER_GROUP, "shop")


def test_dead_connection_of_a_watch_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert api_module.WATCH_S < api_module.SILENCE_S <= 60
    monkeypatch.setattr(api_module, "SILENCE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api = open_api(str(kubeconfig(tmp_path / "config", f"http://127.0.0.1:{silent.getsockname()[1]}")), None, None)
        found: list[FleetError] = []

        def watches() -> None:
            try:
                [*api.watch(CONSUMER_GROUP, "shop", "7")]
            except FleetError as error:
                found.append(error)

        thread = threading.Thread(target=watches, name="watch", daemon=True)
        thread.start()
        thread.join(60)
        api.close()
    assert [error.reason for error in found] == ["NoCluster"]


def test_list_whose_rest_expired_is_read_again(site: tuple[Server, Api]) -> None:
    server, api = site
    server.objects["consumergroups"] = [group(f"orders-{number}") for number in range(700)]
    gone = json.dumps({"message": "the provided continue parameter is too old"})
    server.refusals = [(410, gone), (410, gone)]
    assert len(api.list(CONSUMER_GROUP, "shop").items) == 700


def test_age_of_a_problem_counts_from_the_first() -> None:
    clock = Still()
    feed = Feed(clock)
    feed.fail("one")
    clock.now = 5.0
    feed.fail("two")
    clock.now = 61.0
    assert problem(feed) == "for 1m1s: two"
    feed.list([])
    assert problem(feed) == ""


@pytest.mark.parametrize("by_option", [True, False])
def test_a_kubeconfig_that_does_not_exist_is_named(
    by_option: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = str(tmp_path / "absent.conf")
    monkeypatch.setenv("KUBECONFIG", absent)
    with pytest.raises(NoCluster, match=f"the kubeconfig {absent} does not exist; name a file"):
        open_api(absent if by_option else None, None, None)
