"""The console over HTTP: who sees what, signing in and out, streams, hostile input, and bounds."""

from __future__ import annotations

import asyncio
import json
import re
from html.parser import HTMLParser

import aiohttp
import pytest

from fleet_operator.clients.kinds import CONSUMER_GROUP
from fleet_operator.clients.kube import KubeForbiddenError
from fleet_operator.console import feed as feed_module
from fleet_operator.console import server as server_module
from fleet_operator.console.server import COOKIE, SECURE_COOKIE
from tests.unit.console.bodies import backfill, condition, fleet, observation
from tests.unit.console.site import Site, site

FLEETS = [fleet("orders", "shop"), fleet("ledger", "bank")]
TABS = ("", "/retries", "/scaling", "/backfills")
SECONDS = 30.0


class Tags(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


async def test_viewer_of_one_namespace_sees_only_its_fleets_in_every_view() -> None:
    async with site(("ann", "shop"), fleets=FLEETS, backfills=[backfill(of="ledger", namespace="bank")]) as there:
        page = await there.text("/", "ann")
        assert "orders" in page
        assert "ledger" not in page
        assert "bank" not in page
        assert "ledger" not in await there.text("/?namespace=bank", "ann")
        for tab in TABS:
            assert "orders" in await there.text(f"/fleets/shop/orders{tab}", "ann")
            refused = await there.text(f"/fleets/bank/ledger{tab}", "ann", 403)
            assert refused == await there.text(f"/fleets/bank/absent{tab}", "ann", 403), "existence is not told"
            await there.text(f"/stream/fleets/bank/ledger{tab}", "ann", 403)
        assert "ledger" in await there.text("/")


async def next_event(answer: aiohttp.ClientResponse) -> tuple[str, str]:
    """The next event of a stream, without comments: its name and its data, empty at the stream's end."""
    name = ""
    async with asyncio.timeout(SECONDS):
        while line := (await answer.content.readline()).decode():
            if line.startswith("event: "):
                name = line[7:].strip()
            elif line.startswith("data: "):
                return name, line[6:].strip("\n")
    return "", ""


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(server_module, "CHECK_SECONDS", 0.2)


async def test_stream_sends_what_has_changed_and_nothing_of_other_namespaces() -> None:
    async with site(("ann", "shop"), fleets=FLEETS) as there:
        headers = {"Authorization": "Bearer token-ann"}
        async with there.client.get(f"{there.url}/stream/", headers=headers) as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            kind, data = await next_event(answer)
            assert (kind, "orders" in json.loads(data)) == ("fragment", True)
            there.see(CONSUMER_GROUP, fleet("ledger", "bank", state="Dead"))
            there.see(CONSUMER_GROUP, fleet("orders", "shop", state="Empty"))
            kind, data = await next_event(answer)
            assert (kind, "Empty" in json.loads(data), "ledger" in data, "Dead" in data) == (
                "fragment",
                True,
                False,
                False,
            )


@pytest.mark.parametrize("path", ["/stream/", "/stream/fleets/shop/orders"])
@pytest.mark.parametrize("how", ["token", "right"])
async def test_open_stream_ends_when_token_or_right_is_withdrawn(path: str, how: str) -> None:
    async with site(("ann", "shop"), fleets=FLEETS) as there:
        async with there.client.get(there.url + path, headers={"Authorization": "Bearer token-ann"}) as answer:
            assert (await next_event(answer))[0] == "fragment"
            if how == "token":
                there.reviews.revoked.add("token-ann")
            else:
                there.reviews.rights.discard(("ann", "shop"))
            assert (await next_event(answer))[0] == "end"
        assert there.server._feed.streams == 0


@pytest.mark.parametrize("how", ["api-server", "leadership"])
async def test_open_stream_closes_without_an_end_if_the_next_may_succeed(how: str) -> None:
    """The script keeps the page and tries again; after `end`, it would load the page of the failure."""
    async with site(("ann", "shop"), fleets=FLEETS) as there:
        async with there.client.get(f"{there.url}/stream/", headers={"Authorization": "Bearer token-ann"}) as answer:
            assert (await next_event(answer))[0] == "fragment"
            there.reviews.broken = how == "api-server"
            there.server.leads = how == "api-server"
            while (found := await next_event(answer))[0] == "fragment":
                pass
            assert found == ("", "")
        assert there.server._feed.streams == 0


async def test_stream_of_a_deleted_fleet_ends() -> None:
    async with site(fleets=FLEETS) as there:
        headers = {"Authorization": "Bearer token-root"}
        async with there.client.get(f"{there.url}/stream/fleets/shop/orders", headers=headers) as answer:
            assert (await next_event(answer))[0] == "fragment"
            there.store.cache(CONSUMER_GROUP).remove(("shop", "orders"), "uid-orders", 10_000)
            assert (await next_event(answer))[0] == "end"
        await there.text("/fleets/shop/orders", status=404)


async def test_without_a_token_there_is_only_the_page_for_signing_in() -> None:
    async with site(fleets=FLEETS) as there:
        for path in ("/", "/fleets/shop/orders"):
            await there.text(path, "", 303)
        await there.text("/stream/", "", 401)
        assert "orders" not in await there.text("/login", "")
        for wrong in ("Basic dXNlcjpwYXNz", "Bearer nonsense", "Bearer "):
            async with there.client.get(
                f"{there.url}/", headers={"Authorization": wrong}, allow_redirects=False
            ) as answer:
                assert answer.status == 303


async def sign_in(there: Site, token: str, origin: str | None = None) -> aiohttp.ClientResponse:
    headers = {"Origin": origin if origin is not None else there.url}
    return await there.client.post(f"{there.url}/login", data={"token": token}, headers=headers, allow_redirects=False)


async def test_session_has_an_opaque_cookie_that_scripts_cannot_read_and_ends() -> None:
    async with site(fleets=FLEETS) as there:
        answer = await sign_in(there, "token-root")
        cookie = answer.cookies[COOKIE]
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/")
        assert "token-root" not in cookie.value
        assert "orders" in await there.text("/", "")
        there.client.cookie_jar.update_cookies({COOKIE: cookie.value})
        await there.client.post(f"{there.url}/logout", headers={"Origin": there.url}, allow_redirects=False)
        there.client.cookie_jar.update_cookies({COOKIE: cookie.value})
        await there.text("/", "", 303)


@pytest.mark.parametrize("origin", ["https://elsewhere.example", "null", ""])
async def test_other_sites_cannot_sign_anybody_in_or_out(origin: str) -> None:
    async with site(fleets=FLEETS) as there:
        assert (await sign_in(there, "token-root", origin)).status == 403
        await sign_in(there, "token-root")
        answer = await there.client.post(f"{there.url}/logout", headers={"Origin": origin})
        assert answer.status == 403
        assert "orders" in await there.text("/", "")


async def test_refused_token_begins_no_session_and_is_not_repeated() -> None:
    async with site(fleets=FLEETS) as there:
        answer = await sign_in(there, "wrong-<b>")
        assert (answer.status, COOKIE in answer.cookies, "wrong-" in await answer.text()) == (401, False, False)


HOSTILE = "<script>alert(1)</script>\" onload='x' {{ 7*7 }}"


async def test_hostile_words_of_workers_brokers_and_people_are_only_text() -> None:
    entry = {"topic": HOSTILE, "partition": 0, "offset": 1, "pod": HOSTILE, "since": HOSTILE}
    body = fleet(
        behindText=HOSTILE,
        state=HOSTILE,
        assignor=HOSTILE,
        image=HOSTILE,
        conditions=[
            condition("Ready", "False", "BreakerOpen", HOSTILE),
            condition("Degraded", "True", HOSTILE, HOSTILE),
        ],
        members=[{"id": HOSTILE, "host": HOSTILE, "partitions": [{"topic": HOSTILE, "ranges": HOSTILE}]}],
        transitions=[{"from": HOSTILE, "to": HOSTILE, "at": HOSTILE, "cause": HOSTILE}],
        stuckPartitions=[{**entry, "reason": HOSTILE, "message": HOSTILE}],
        retry={"failedReasons": [{"reason": HOSTILE, "errorClass": HOSTILE, "records": 1}]},
        scaling={"decision": HOSTILE, "reason": HOSTILE, "arrivalPerSecond": HOSTILE},
    )
    async with site(fleets=[body], backfills=[backfill(progressText=HOSTILE, topic=HOSTILE)]) as there:
        there.observed.found["shop", "main"] = observation()
        pages = [await there.text(f"/fleets/shop/orders{tab}") for tab in TABS]
        pages += [await there.text("/"), await there.text("/", params={"q": HOSTILE, "namespace": HOSTILE})]
        pages.append(await there.text("/fleets/" + "%3Cscript%3E/x", status=404))
    for page in pages:
        tags = Tags(page).found
        assert [attrs for tag, attrs in tags if tag == "script"] == [{"src": "/static/console.js", "defer": None}]
        assert not [name for _, attrs in tags for name in attrs if name.startswith("on") or name == "style"]
        assert "49" not in re.findall(r"\{\{[^}]*\}\}|onload='x' (\S+)", page)


@pytest.mark.parametrize(
    "path",
    [
        *("/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e/%2e%2e/app.py", "/static/none.js"),
        *("/fleets/shop", "/fleets/shop/orders/none", "/fleets/shop/orders/retries/more", "/%00", "/admin"),
        *(f"/fleets/{'x' * 64}/orders", f"/fleets/shop/{'x' * 254}", "/fleets/shop/Orders", "/fleets/shop/a..b"),
        *("/fleets/..%2f..%2fetc/passwd", "/fleets//", "/stream/none", "/stream/static/console.js"),
    ],
)
async def test_paths_outside_the_console_are_not_found(path: str) -> None:
    async with site(fleets=FLEETS) as there:
        reader, writer = await asyncio.open_connection("127.0.0.1", there.server.port)
        request = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-root\r\nConnection: close\r\n\r\n"
        writer.write(request.encode())
        answer = (await reader.read()).decode()
        writer.close()
        assert answer.split()[1] == "404", answer
        assert "import" not in answer


async def test_header_injection_is_refused_by_the_parser() -> None:
    async with site(fleets=FLEETS) as there:
        for path in ("/?q=x%0d%0aSet-Cookie:%20a=b", "/fleets/shop%0d%0aX-Evil:%201/orders"):
            headers = {"Authorization": "Bearer token-root"}
            async with there.client.get(there.url + path, headers=headers, allow_redirects=False) as answer:
                assert "X-Evil" not in answer.headers
                assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("path", ["/", "/login", "/static/console.js", "/none", "/fleets/shop/orders"])
async def test_every_answer_has_the_security_headers(path: str) -> None:
    async with site(fleets=FLEETS) as there:
        for headers in ({}, {"Authorization": "Bearer token-root"}):
            async with there.client.get(there.url + path, headers=headers, allow_redirects=False) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert "Cache-Control" in answer.headers


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "POST"])
async def test_nothing_can_be_changed(method: str) -> None:
    async with site(fleets=FLEETS) as there:
        for path in ("/", "/fleets/shop/orders", "/static/console.js", "/stream/"):
            headers = {"Authorization": "Bearer token-root", "Origin": there.url}
            async with there.client.request(method, there.url + path, headers=headers) as answer:
                assert answer.status == 405


async def test_standby_answers_503_to_everything_and_closes_the_connection() -> None:
    async with site(fleets=FLEETS) as there:
        there.server.leads = False
        for path in ("/", "/login", "/stream/", "/static/console.css"):
            async with there.client.get(there.url + path) as answer:
                assert (answer.status, answer.headers["Connection"]) == (503, "close")
                assert "standby" in await answer.text()


async def test_nobody_sees_anything_while_the_api_server_does_not_answer() -> None:
    async with site(fleets=FLEETS) as there:
        there.reviews.broken = True
        assert "orders" not in await there.text("/", status=503)


async def test_streams_are_bounded_and_slow_viewers_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "STREAMS_MAX", 3)
    async with site(fleets=FLEETS) as there:
        headers = {"Authorization": "Bearer token-root"}
        answers = [await there.client.get(f"{there.url}/stream/", headers=headers) for _ in range(3)]
        await there.text("/stream/", status=429)
        (topic,) = there.server._feed._topics.values()
        slow = next(iter(topic.streams))
        for _ in range(feed_module.WAITING_MAX + 1):
            slow.offer("x")
        assert slow.dropped.is_set()
        for answer in answers:
            answer.close()


async def test_buckets_of_the_status_are_not_shown_as_exact_numbers() -> None:
    async with site(fleets=[fleet(retry={"waiting": 4096, "dueLag": 16})]) as there:
        page = await there.text("/fleets/shop/orders/retries")
        assert ("~4k" in page, "~16" in page, "4\u202f096" in page) == (True, True, False)


async def test_page_without_a_stream_says_when_it_was_made() -> None:
    async with site(fleets=FLEETS) as there:
        page = await there.text("/")
        assert re.search(r'role="status">As of \d{4}-\d\d-\d\dT', page)
        assert ">Live<" not in page


async def test_pages_of_failures_are_loaded_again_by_the_browser() -> None:
    async with site(fleets=FLEETS) as there:
        there.reviews.broken = True
        async with there.client.get(f"{there.url}/", headers={"Authorization": "Bearer token-root"}) as answer:
            assert (answer.status, answer.headers["Refresh"]) == (503, str(server_module.RETRY_SECONDS))


async def test_missing_permission_of_the_operator_names_the_role(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forbidden(_: object) -> None:
        raise KubeForbiddenError("may not create tokenreviews", status=403)

    async with site(fleets=FLEETS) as there:
        monkeypatch.setattr(there.server._access, "viewer_of", forbidden)
        assert "ClusterRole whose name ends with -console" in await there.text("/", status=503)


async def test_long_token_in_the_header_is_accepted() -> None:
    user = "x" * 16_000
    async with site((user, ""), fleets=FLEETS) as there:
        assert "orders" in await there.text("/", user)


STRANGE = {
    "origin": b"POST /login HTTP/1.1\r\nHost: x\r\nOrigin: http://[\r\nContent-Length: 0\r\n",
    "charset": b"POST /login HTTP/1.1\r\nHost: x\r\nOrigin: http://x\r\nContent-Length: 3\r\n"
    b"Content-Type: application/x-www-form-urlencoded; charset=none-such\r\n",
    "cookie": f"GET / HTTP/1.1\r\nHost: x\r\nCookie: {COOKIE}=a".encode() + b"\xff\r\n",
}


@pytest.mark.parametrize(("what", "status"), [("origin", 403), ("charset", 400), ("cookie", 303)])
async def test_strange_requests_are_refused_with_the_security_headers(what: str, status: int) -> None:
    async with site(fleets=FLEETS) as there:
        reader, writer = await asyncio.open_connection("127.0.0.1", there.server.port)
        writer.write(STRANGE[what] + b"Connection: close\r\n\r\n" + (b"a=b" if what == "charset" else b""))
        answer = (await reader.read()).decode()
        writer.close()
    assert answer.split()[1] == str(status), answer
    assert "Content-Security-Policy" in answer


async def test_unexpected_failure_is_a_page_with_the_security_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(_: object) -> None:
        raise ZeroDivisionError("secret")

    async with site(fleets=FLEETS) as there:
        monkeypatch.setattr(there.server._access, "viewer_of", fails)
        async with there.client.get(f"{there.url}/", headers={"Authorization": "Bearer token-root"}) as answer:
            text = await answer.text()
            assert (answer.status, "secret" in text, "Traceback" in text) == (500, False, False)
            assert "Content-Security-Policy" in answer.headers


async def test_cookie_of_https_is_bound_to_this_host() -> None:
    async with site(fleets=FLEETS) as there:
        answer = await sign_in(there, "token-root", there.url.replace("http:", "https:"))
        cookie = answer.cookies[SECURE_COOKIE]
        assert (answer.status, bool(cookie["secure"]), cookie["path"], cookie["domain"]) == (303, True, "/", "")
        headers = {"Cookie": f"{SECURE_COOKIE}={cookie.value}"}
        async with there.client.get(f"{there.url}/", headers=headers, allow_redirects=False) as page:
            assert page.status == 200


async def test_a_login_of_any_size_does_not_fill_the_memory() -> None:
    async with site(fleets=FLEETS) as there:
        assert (await sign_in(there, "x" * 100_000)).status == 413


async def test_viewers_of_the_same_page_share_its_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(("ann", ""), ("bob", "shop"), fleets=FLEETS) as there:
        answers = []
        for user in ("ann", "root", "ann", "bob"):
            headers = {"Authorization": f"Bearer token-{user}"}
            answers.append(await there.client.get(f"{there.url}/stream/", headers=headers))
        assert len(there.server._feed._topics) == 2, "one for all namespaces, one for shop"
        for answer in answers:
            answer.close()
