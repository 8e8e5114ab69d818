"""A small HTTP server in place of the API server and its kubelets: lists, logs and exec of one fleet."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from fleet_operator.clients.kinds import CONSUMER_GROUP, OFFSET_RESET, POD, REDRIVE, JsonObject

STDOUT, STDERR, RESULT = b"\x01", b"\x02", b"\x03"


class Server:
    """Answers of the server. `outputs` has standard output, standard error and exit code of a command by its word after
    `failed`; other commands do not end. `logs` has the lines of each pod, `read_logs` the
    pods and containers whose log was read. `commands` collects the commands that were run. A created object gets the
    status of `ends` by its plural, as an operator would write it. `refusals` are the next answers to lists, with their
    status codes, and `watches` the next answers to watches."""

    def __init__(self) -> None:
        self.objects: dict[str, list[JsonObject]] = {}
        self.outputs: dict[str, tuple[str, str, int]] = {}
        self.logs: dict[str, list[str]] = {}
        self.read_logs: list[tuple[str, str]] = []
        self.commands: list[list[str]] = []
        self.ends: dict[str, JsonObject] = {}
        self.refusals: list[tuple[int, str]] = []
        self.watches: list[str] = []
        self.requests = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        *_, last = request.path.split("/")
        if last == "exec":
            return await self._exec(request)
        if last == "log":
            name = request.path.split("/")[-2]
            self.read_logs.append((name, request.query["container"]))
            return web.Response(text="".join(f"{line}\n" for line in self.logs[name]))
        for kind in (POD, CONSUMER_GROUP, REDRIVE, OFFSET_RESET):
            found = self.objects.setdefault(kind.plural, [])
            if request.method == "POST" and last == kind.plural:
                found.append({**await request.json(), "status": self.ends[last]})
                return web.json_response(found[-1], status=201)
            if last == kind.plural and "watch" in request.query:
                return web.Response(text=self.watches.pop(0) if self.watches else "")
            if last == kind.plural and self.refusals:
                status, text = self.refusals.pop(0)
                return web.Response(text=text, status=status)
            if last == kind.plural:
                return _page(found, request.query)
            for body in found:
                if request.path == kind.path(body["metadata"]["namespace"], body["metadata"]["name"]):
                    return web.json_response(body)
        return web.json_response({"message": "not found", "details": {"name": last}}, status=404)

    async def _exec(self, request: web.Request) -> web.WebSocketResponse:
        command = request.query.getall("command")
        self.commands.append(command)
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        if command[2] not in self.outputs:
            await socket.receive()  # a command that does not end: the client closes
            return socket
        out, said, code = self.outputs[command[2]]
        for channel, text in ((STDOUT, out), (STDERR, said)):
            if text:
                await socket.send_bytes(channel + text.encode())
        failure = {"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]}}
        await socket.send_bytes(RESULT + json.dumps(failure if code else {"status": "Success"}).encode())
        await socket.close()
        return socket


def _page(found: list[JsonObject], query: Mapping[str, str]) -> web.Response:
    """A page of a list, as the API server cuts it, of all objects or of the one that a field selector names."""
    name = query.get("fieldSelector", "").removeprefix("metadata.name=")
    found = [body for body in found if name in ("", body["metadata"]["name"])]
    first, limit = int(query.get("continue", "0")), int(query.get("limit", len(found)))
    more = {"continue": str(first + limit)} if first + limit < len(found) else {}
    return web.json_response({"items": found[first : first + limit], "metadata": {"resourceVersion": "7", **more}})


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Server, Path]]:
    """A running server and its kubeconfig."""
    server, loop = Server(), asyncio.new_event_loop()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(application)
    loop.run_until_complete(runner.setup())
    site = web.TCPSite(runner, "127.0.0.1", 0)
    loop.run_until_complete(site.start())
    port = runner.addresses[0][1]
    thread = threading.Thread(target=loop.run_forever, name="server")
    thread.start()
    try:
        yield server, kubeconfig(folder / "config", f"http://127.0.0.1:{port}")
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def kubeconfig(path: Path, url: str) -> Path:
    """A kubeconfig with the namespace `shop` in its context."""
    named: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "shop"}}],
        "clusters": [{"name": "here", "cluster": {"server": url}}],
        "users": [{"name": "me", "user": {}}],
    }
    path.write_text(yaml.safe_dump(named))
    return path
