"""An operator to which something happens at a chosen one of its own calls to the API server.

Everything except the client is the product's own. The client is wrapped: it counts the calls and, at the chosen one,
kills the process (SIGKILL) either before the call is made or after the server has answered; or it wipes the statuses of
all objects that the operator serves.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from multiprocessing.sharedctypes import Synchronized
from typing import Literal, ParamSpec, TypeVar

from fleet_consumer.clock import SystemClock
from fleet_operator.app import App, end
from fleet_operator.clients.kinds import CONSUMER_GROUP, KAFKA_CLUSTER, RETRY_POLICY, WHOLE, JsonObject, Kind, View
from fleet_operator.clients.kube import KubeClient, Listing, WatchEvent
from fleet_operator.runtime import logs
from fleet_operator.runtime.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")
Moment = Literal["before", "after", "wipe"]


class KillingClient(KubeClient):
    """`KubeClient` that kills its process, or wipes statuses, at the `fatal`-th counted call; 0 means never.

    With `writes_only` reads do not count. `calls` is the number of all calls, `counted` that of the counted ones.
    """

    def __init__(
        self,
        kube: KubeClient,
        calls: Synchronized[int],
        counted: Synchronized[int],
        fatal: int,
        moment: Moment,
        *,
        namespace: str,
        writes_only: bool,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._calls = calls
        self._count = counted
        self._fatal = fatal
        self._moment = moment
        self._writes_only = writes_only

    async def get(self, kind: Kind, namespace: str, name: str) -> JsonObject | None:
        return await self._read(self._kube.get)(kind, namespace, name)

    async def list(self, kind: Kind, namespace: str | None, *, label_selector: str = "", view: View = WHOLE) -> Listing:
        return await self._read(self._kube.list)(kind, namespace, label_selector=label_selector, view=view)

    async def pages(
        self, kind: Kind, namespace: str | None, *, label_selector: str = "", view: View = WHOLE
    ) -> AsyncIterator[Listing]:
        yield await self.list(kind, namespace, label_selector=label_selector, view=view)

    def watch(
        self, kind: Kind, namespace: str | None, version: str, *, label_selector: str = "", view: View = WHOLE
    ) -> AsyncIterator[WatchEvent]:
        return self._kube.watch(kind, namespace, version, label_selector=label_selector, view=view)

    async def apply(self, body: JsonObject) -> JsonObject:
        return await self._counted(self._kube.apply)(body)

    async def apply_status(self, body: JsonObject) -> JsonObject:
        return await self._counted(self._kube.apply_status)(body)

    async def create(self, body: JsonObject, *, strict: bool = False) -> JsonObject:
        return await self._counted(self._kube.create)(body, strict=strict)

    async def replace(self, body: JsonObject) -> JsonObject:
        return await self._counted(self._kube.replace)(body)

    async def merge(self, body: JsonObject) -> JsonObject:
        return await self._counted(self._kube.merge)(body)

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str, version: str | None = None) -> bool:
        return await self._counted(self._kube.delete)(kind, namespace, name, uid=uid, version=version)

    def _read(self, call: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        return self._counted(call, counts=not self._writes_only)

    def _counted(self, call: Callable[P, Awaitable[T]], *, counts: bool = True) -> Callable[P, Awaitable[T]]:
        async def counted(*args: P.args, **kwargs: P.kwargs) -> T:
            number = -1
            with self._calls.get_lock():
                self._calls.value += 1
                if counts:
                    self._count.value += 1
                    number = self._count.value
            if number == self._fatal and self._moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            answer = await call(*args, **kwargs)
            if number == self._fatal and self._moment == "after":
                os.kill(os.getpid(), signal.SIGKILL)
            if number == self._fatal and self._moment == "wipe":
                await self._wipe()
            return answer

        return counted

    async def _wipe(self) -> None:
        for kind in (KAFKA_CLUSTER, CONSUMER_GROUP, RETRY_POLICY):
            for body in (await self._kube.list(kind, self._namespace)).items:
                metadata = {name: body["metadata"][name] for name in ("name", "namespace")}
                head = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
                await self._kube.apply_status({**head, "status": {"observedGeneration": -1}})


def run(
    kubeconfig: str,
    namespace: str,
    calls: Synchronized[int],
    counted: Synchronized[int],
    fatal: int,
    moment: Moment,
    writes_only: bool,
    image: str,
) -> None:
    """Run an operator for one namespace with this worker image, until SIGTERM or its death."""
    os.environ["KUBECONFIG"] = kubeconfig
    logs.configure("text", "error")
    settings = Settings(namespaces=(namespace,), metrics_port=0, health_port=0, consumer_image=image)

    async def serve() -> None:
        kube = await KubeClient.connect()
        client = KillingClient(kube, calls, counted, fatal, moment, namespace=namespace, writes_only=writes_only)
        app = App(settings, client, client, SystemClock())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.stop)
        await app.run()
        await kube.close()

    end(serve())
