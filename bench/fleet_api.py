"""Requests to a Kubernetes API server for the parts of the operator's benchmark that are not measured."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import aiohttp

from fleet_operator.clients.kinds import JsonObject, Kind
from fleet_operator.clients.kube import KubeClient, KubeNotFoundError

WATCH_SECONDS: Final = 3600
LINE_BYTES_MAX: Final = 4 * 1024 * 1024


class FleetApi(KubeClient):
    """The operator's own client, with the verbs of users, kubelets and controllers: create, report, watch."""

    async def report(self, kind: Kind, body: JsonObject, status: Mapping[str, Any]) -> JsonObject:
        """Merge into an object's status, as its controller does; empty if the object is gone."""
        path = kind.path(body["metadata"]["namespace"], body["metadata"]["name"], "status")
        try:
            return await self._call("PATCH", path, body={"status": status}, content_type="application/merge-patch+json")
        except KubeNotFoundError:
            return {}

    async def create_all(self, bodies: Sequence[JsonObject], at_once: int) -> list[JsonObject]:
        """Create objects, at most `at_once` at the same time; returns them as stored, in the given order."""
        turn = asyncio.Semaphore(at_once)

        async def one(body: JsonObject) -> JsonObject:
            async with turn:
                return await self.create(body)

        return await asyncio.gather(*map(one, bodies))

    async def follow(self, kind: Kind, selector: str = "") -> AsyncIterator[tuple[str, JsonObject]]:
        """Yield every existing object, then every change: type (ADDED, MODIFIED or DELETED) and object, endlessly."""
        version = "0"
        connector = aiohttp.TCPConnector(ssl=self._api.rest_client.ssl_context)
        timeout = aiohttp.ClientTimeout(total=None, sock_read=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            while True:
                query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
                query |= {"resourceVersion": version} | ({"labelSelector": selector} if selector else {})
                url = f"{self._api.configuration.host}{kind.path(None)}"
                async with session.get(url, params=query) as answer:
                    assert answer.status == 200, await answer.text()
                    async for line in _lines(answer.content):
                        event = json.loads(line)
                        body = event["object"]
                        assert event["type"] != "ERROR", body
                        version = body["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            yield event["type"], body


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines up to `LINE_BYTES_MAX`; the reader's own iterator refuses long ones."""
    rest = b""
    while chunk := await stream.readany():
        *whole, rest = (rest + chunk).split(b"\n")
        assert len(rest) < LINE_BYTES_MAX, "event too long"
        for line in whole:
            if line:
                yield line
