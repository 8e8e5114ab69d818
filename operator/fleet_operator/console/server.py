"""The console's HTTP server: sign-in, pages and streams. The server is read-only; POST requests only begin and end
sessions.

It has its own thread and event loop, so that slow viewers never delay the operator. A standby answers 503.

A viewer is identified by a bearer token in the header Authorization, as oauth2-proxy sends it, or by a session cookie.
`access` checks the viewer for each request, and before each fragment of a stream. Permission for a namespace is checked
before a fleet is read, so that nobody without this permission learns if the fleet exists.
"""

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from fleet_consumer.clock import Clock
from fleet_operator.clients.kinds import BACKFILL, CONSUMER_GROUP
from fleet_operator.clients.kube import KubeError, KubeForbiddenError
from fleet_operator.console.access import (
    LABEL,
    NAMESPACES_MAX,
    TOKEN_CHARACTERS_MAX,
    Access,
    TooManyAttemptsError,
    Viewer,
)
from fleet_operator.console.board import Board, Source
from fleet_operator.console.feed import Feed, Stream, TooManyStreamsError
from fleet_operator.console.pages import TABS, Page, Pages
from fleet_operator.console.sessions import SESSION_SECONDS, Sessions
from fleet_operator.console.views.fleets import TEXT_CHARACTERS_MAX, read_query
from fleet_operator.planning import times

log = logging.getLogger(__name__)

COOKIE: Final = "fleet-console"
SECURE_COOKIE: Final = f"__Host-{COOKIE}"
"""Cookie of a session that began over HTTPS: browsers accept this name only from this host, and only over HTTPS."""
HEADER_BYTES_MAX: Final = TOKEN_CHARACTERS_MAX + 1024
"""Maximum size of one header, which may contain a token."""
BODY_BYTES_MAX: Final = 32_768
WRITE_SECONDS: Final = 10.0
"""Timeout for sending one fragment to a viewer."""
CHECK_SECONDS: Final = 5.0
"""Longest time in seconds between two checks that the viewer of an open page still has permission. After each check, a
fragment or a comment is sent, so that proxies do not close the idle connection."""
ANSWER_SECONDS: Final = 30.0
"""Timeout for sending a complete response that is not a stream, or the end of a stream."""
BODY_SECONDS: Final = 10.0
"""Timeout for receiving a form from a browser."""
IDLE_SECONDS: Final = 30.0
"""Time after which a connection without a complete request is closed."""
CONNECTIONS_MAX: Final = 500
"""Maximum number of open connections. Further connections are closed immediately, so that nobody exhausts the
operator's file descriptors."""
CLOSE_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 5
"""Time after which a browser reloads an error page."""
FORBIDDEN_TEXT: Final = (
    "The operator may not create TokenReviews and SubjectAccessReviews. The chart grants this with a ClusterRole whose "
    "name ends with -console: install the chart with console.enabled, or bind this ClusterRole to the operator."
)
NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With `no-referrer`, browsers send `Origin: null` even with forms of this site.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Refusal(Exception):
    """An error response in place of the requested page: HTTP status, title, and a sentence that says what to do."""

    def __init__(self, status: int, title: str, text: str) -> None:
        super().__init__(text)
        self.status, self.title, self.text = status, title, text


class ConsoleServer:
    """Serves the console on one event loop. With port 0, a free port is used (see `port`)."""

    def __init__(self, source: Source, access: Access, clock: Clock, port: int) -> None:
        self.port = port
        self.leads = False
        """True while this process is the leader and its caches are filled."""
        self._source, self._access, self._clock = source, access, clock
        self._board = Board()
        self._pages = Pages(self._board, source, clock)
        self._feed = Feed(lambda: self._board.take(source.changes, clock.wall()))
        self._sessions = Sessions(clock)
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._rendering: asyncio.Task[None] | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/static/{name}", self._static),
                web.get("/login", self._login_page),
                web.post("/login", self._login),
                web.post("/logout", self._logout),
                web.get("/stream/{path:.*}", self._stream),
                web.get("/{path:.*}", self._page),
            ]
        )
        self._runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=CLOSE_SECONDS,
            keepalive_timeout=IDLE_SECONDS,
            max_field_size=HEADER_BYTES_MAX,
        )
        await self._runner.setup()
        self._listener = await asyncio.get_running_loop().create_server(self._protocol, port=self.port)
        self.port = int(min((each.getsockname() for each in self._listener.sockets), key=len)[1])
        self._rendering = asyncio.create_task(self._feed.keep_rendering(), name="console-feed")
        log.info("serving the console", extra={"console_port": self.port})

    async def stop(self) -> None:
        if self._rendering is not None:
            self._rendering.cancel()
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def _protocol(self) -> asyncio.Protocol:
        """Create the protocol handler of a new connection. If there are already CONNECTIONS_MAX connections, the
        handler only closes the new one."""
        server = self._runner.server if self._runner is not None else None
        return server() if server is not None and len(server.connections) < CONNECTIONS_MAX else _Full()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Send a response, or the end of a stream. A client that does not receive the data within ANSWER_SECONDS is
        disconnected, because aiohttp has no timeout for writes."""
        answer = await self._answered(request, handler)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await answer.prepare(request)
                await answer.write_eof()
        except TimeoutError:
            _abort(request)
        except ConnectionError:
            pass  # the viewer has left
        return answer

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Call the handler. Errors become an error page, and redirects get the security headers."""
        try:
            if not self.leads:
                raise Refusal(503, "Standby", "This operator pod is a standby or is still starting: reload the page.")
            return await handler(request)
        except Refusal as refusal:
            return self._refused(refusal)
        except web.HTTPException as error:
            if error.status < 400:
                return web.Response(status=error.status, headers={**HEADERS, "Location": error.headers["Location"]})
            return self._refused(Refusal(error.status, error.reason, "Go back to the list of fleets."))
        except (TooManyAttemptsError, TooManyStreamsError) as error:
            return self._refused(Refusal(429, "Too many requests", str(error)))
        except KubeForbiddenError as error:
            log.warning("the operator lacks permission to review the console's viewers", extra={"error": str(error)})
            return self._refused(Refusal(503, "The operator lacks a permission", FORBIDDEN_TEXT))
        except KubeError as error:
            log.warning("the API server did not answer the console", extra={"error": str(error)})
            text = "The API server did not answer, so your permissions are unknown. This page reloads automatically."
            return self._refused(Refusal(503, "The API server did not answer", text))
        except Exception:
            log.exception("the console failed to answer")
            return self._refused(Refusal(500, "The console failed", "See the operator's log for the cause."))

    def _refused(self, refusal: Refusal) -> web.Response:
        answer = self._html(
            self._pages.render("refused.html", title=refusal.title, text=refusal.text, viewer=None), refusal.status
        )
        if refusal.status >= 500:
            answer.headers["Retry-After"] = answer.headers["Refresh"] = str(RETRY_SECONDS)
            answer.force_close()  # so that the browser's next connection may reach the leader
        return answer

    def _html(self, text: str, status: int = 200) -> web.Response:
        return web.Response(text=text, status=status, content_type="text/html", charset="utf-8", headers=HEADERS)

    async def _static(self, request: web.Request) -> web.Response:
        found = self._pages.static.get(request.match_info["name"])
        if found is None:
            raise Refusal(404, "Not found", "The console has no such file.")
        headers = {**HEADERS, "Cache-Control": "max-age=300"}
        return web.Response(body=found[1], content_type=found[0], charset="utf-8", headers=headers)

    async def _login_page(self, _: web.Request) -> web.Response:
        return self._html(self._pages.render("login.html", title="Sign in", viewer=None, wrong=False))

    async def _login(self, request: web.Request) -> web.Response:
        scheme = _require_same_origin(request)
        token = await _token_of(request)
        viewer = await self._access.viewer_of(token)
        if viewer is None:
            return self._html(self._pages.render("login.html", title="Sign in", viewer=None, wrong=True), 401)
        answer = web.Response(status=303, headers={**HEADERS, "Location": "/"})
        secure = scheme == "https"
        self._sessions.revoke(_session_of(request))
        value, limit = self._sessions.begin(token, viewer.name), int(SESSION_SECONDS)
        name = SECURE_COOKIE if secure else COOKIE
        answer.set_cookie(name, value, max_age=limit, httponly=True, samesite="Strict", secure=secure, path="/")
        return answer

    async def _logout(self, request: web.Request) -> web.Response:
        _require_same_origin(request)
        self._sessions.revoke(_session_of(request))
        answer = web.Response(status=303, headers={**HEADERS, "Location": "/login"})
        answer.del_cookie(COOKIE, path="/")
        answer.del_cookie(SECURE_COOKIE, path="/", secure=True)
        return answer

    async def _viewer(self, request: web.Request) -> Viewer | None:
        """The user who sent the request; None without a valid token. Raises KubeError and TooManyAttemptsError."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            token = self._sessions.token_of(_session_of(request)) or ""
        return await self._access.viewer_of(token.strip()) if token else None

    async def _page(self, request: web.Request) -> web.Response:
        viewer = await self._viewer(request)
        if viewer is None:
            raise web.HTTPSeeOther("/login")
        page = await self._found(request, viewer)
        live = await page.render()
        if live is None:
            raise Refusal(404, "Not found", "There is no such ConsumerGroup in this namespace.")
        return self._html(
            self._pages.render(
                "page.html",
                title=page.title,
                viewer=viewer.name,
                live=live,
                at=times.to_text(self._clock.wall()),
                stream=f"/stream{request.path_qs}",
                **page.context,
            )
        )

    async def _found(self, request: web.Request, viewer: Viewer) -> Page:
        """The page of a URL. Raises Refusal if the viewer lacks permission or the page does not exist, KubeError, and
        TooManyAttemptsError."""
        self._board.take(self._source.changes, self._clock.wall())
        match request.match_info["path"].split("/"):
            case [""]:
                query = read_query(request.query)
                candidates = [query.namespace] if query.namespace else self._board.namespaces()
                readable = await self._access.readable(viewer, CONSUMER_GROUP, candidates)
                cut = readable is not None and len(candidates) > NAMESPACES_MAX
                return self._pages.list_page(query, readable, cut=cut)
            case ["fleets", namespace, name, *tab] if (
                len(tab) <= 1 and "".join(tab) in TABS and _can_be(namespace, name)
            ):
                if not await self._access.may(viewer, "get", CONSUMER_GROUP, namespace):
                    text = f"You may not read ConsumerGroups in namespace {namespace}. Ask its owner for the role view."
                    raise Refusal(403, "Not allowed", text)
                backfills = await self._access.may(viewer, "list", BACKFILL, namespace)
                return self._pages.fleet_page((namespace, name), "".join(tab), backfills=backfills)
        raise Refusal(404, "Not found", "The console has no such page.")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._viewer(request)
        if viewer is None:
            raise Refusal(401, "Signed out", "Sign in again.")
        page = await self._found(request, viewer)
        stream = self._feed.subscribe(page.key, page.render, viewer.name)
        answer = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        answer.force_close()  # so that the browser's next connection may reach another leader
        try:
            await answer.prepare(request)
            await self._pass_on(request, answer, stream, (viewer, page))
        except ConnectionError:
            pass  # the viewer has left
        except TimeoutError:
            _abort(request)
        except (KubeError, TooManyAttemptsError) as error:
            log.warning("a console page lost its viewer's check", extra={"error": str(error)})
        except Exception:
            log.exception("a stream of the console failed")
        finally:
            self._feed.unsubscribe(page.key, stream)
        return answer

    async def _pass_on(
        self, request: web.Request, answer: web.StreamResponse, stream: Stream, seen: tuple[Viewer, Page]
    ) -> None:
        """Send fragments until the viewer leaves, is too slow, or loses permission. The permission is checked before
        each fragment. A stream normally ends with the event `end`, which makes the browser reload the page. After a
        loss of leadership, the event is not sent: the browser then keeps the page and tries to open a new stream.
        Raises ConnectionError, TimeoutError, KubeError and TooManyAttemptsError, without sending `end`."""
        while not stream.dropped.is_set():
            fragment = None
            with suppress(TimeoutError):
                fragment = await asyncio.wait_for(stream.fragments.get(), CHECK_SECONDS)
            allowed = await self._still(request, *seen)
            if not self.leads:
                return
            if not allowed:
                break
            data = ": here\n\n" if fragment is None else f"event: fragment\ndata: {json.dumps(fragment)}\n\n"
            await asyncio.wait_for(answer.write(data.encode()), WRITE_SECONDS)
        await asyncio.wait_for(answer.write(b"event: end\ndata: \n\n"), WRITE_SECONDS)

    async def _still(self, request: web.Request, viewer: Viewer, page: Page) -> bool:
        """True if the request still has the same viewer, with the same permissions. Raises KubeError and
        TooManyAttemptsError."""
        if await self._viewer(request) != viewer:
            return False
        try:
            return (await self._found(request, viewer)).key == page.key
        except Refusal:
            return False


class _Full(asyncio.Protocol):
    """Protocol handler that only closes its connection, because there are already CONNECTIONS_MAX others."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


def _abort(request: web.Request) -> None:
    """Close a connection immediately. A normal close would wait until the viewer has received the buffered data."""
    if request.transport is not None:
        request.transport.abort()


async def _token_of(request: web.Request) -> str:
    """Read the token from a form. Raises Refusal if the form arrives too slowly or cannot be read."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return str((await request.post()).get("token", "")).strip()
    except TimeoutError:
        raise Refusal(408, "Too slow", "The form did not arrive in time: sign in again.") from None
    except (LookupError, ValueError):
        raise Refusal(400, "Not a form", "The form cannot be read: sign in on the console's own page.") from None


def _session_of(request: web.Request) -> str:
    """The value of the session cookie; empty without a cookie."""
    return request.cookies.get(SECURE_COOKIE) or request.cookies.get(COOKIE, "")


def _can_be(namespace: str, name: str) -> bool:
    """True if these are a valid namespace and object name."""
    fits = LABEL.fullmatch(namespace) is not None and len(name) <= TEXT_CHARACTERS_MAX
    return fits and NAME.fullmatch(name) is not None


def _require_same_origin(request: web.Request) -> str:
    """Refuse a POST request that a page of another site made the browser send (CSRF). Returns the scheme of the
    console's own URL."""
    try:
        origin = urlsplit(request.headers.get("Origin", ""))
    except ValueError:
        origin = urlsplit("")
    if not origin.netloc or origin.netloc != request.host:
        raise Refusal(403, "Not allowed", "Another site's page sent the request: sign in on the console's own page.")
    return origin.scheme
