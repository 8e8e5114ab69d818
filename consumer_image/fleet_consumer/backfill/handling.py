"""Handlers in a process that calls them for a backfill: loading, `setup`, event loops, and two side by side.

Two handlers of a comparison may have modules of the same name. Each folder's own modules are in `sys.modules` only
while its handler runs, so that imports at call time find the right ones as well.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from fleet_consumer.contract.worker_config import HandlerConfig, PythonSource, WorkerConfig
from fleet_consumer.handlers.call import CURRENT_CALL, HandlerCall
from fleet_consumer.handlers.decoding import decoder
from fleet_consumer.handlers.loading import Handler, HandlerContext, load_handler
from fleet_consumer.handlers.performing import Outputs, Performer, Result
from fleet_consumer.record import Record

LOG = logging.getLogger("fleet_consumer.backfill")


GoOn = Callable[[Result], bool]
"""Asked after each call with its last result: whether the next record is handled."""


def _always(result: Result) -> bool:
    return True


class OwnModules:
    """The modules of one folder, which hide others of their names while the context is entered. Not reentrant."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._mine: dict[str, ModuleType] = {}

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have imports find this folder first."""
        if self._folder is None:
            yield
            return
        names = _top_level(self._folder)
        hidden = _taken_out(names)
        sys.modules.update(self._mine)
        sys.path.insert(0, self._folder)
        try:
            yield
        finally:
            with suppress(ValueError):
                sys.path.remove(self._folder)
            self._mine = _taken_out(names)
            sys.modules.update(hidden)


def _top_level(folder: str) -> frozenset[str]:
    """The names of the folder's modules and packages. Hidden entries are the kubelet's."""
    with suppress(OSError):
        entries = [each for each in Path(folder).iterdir() if not each.name.startswith((".", "__"))]
        return frozenset(each.name.partition(".")[0] for each in entries if each.suffix == ".py" or each.is_dir())
    return frozenset()


def _taken_out(names: frozenset[str]) -> dict[str, ModuleType]:
    found = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in names}
    for name in found:
        del sys.modules[name]
    return found


class LoadedHandler:
    """One handler, ready for calls from one thread. `apart`: keep its folder's modules to itself."""

    def __init__(self, source: PythonSource, settings: HandlerConfig, *, apart: bool) -> None:
        """Import the handler. Raises HandlerImportFailed and HandlerNotCallable."""
        self._modules = OwnModules(source.path if apart else None)
        with self._modules.entered():
            self.handler: Handler = load_handler(source.callable, source.path)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._performer = Performer(
            self.handler.call,
            batch=self.handler.batch,
            decode_key=decoder("key", settings.decode.key),
            decode_value=decoder("value", settings.decode.value),
            outputs=Outputs(settings.outputs),
            timeout_s=settings.timeout_seconds,
        )

    @property
    def batch(self) -> bool:
        """True if a call takes several records."""
        return self.handler.batch

    def set_up(self, context: HandlerContext) -> None:
        """Run `setup`, and have `teardown` run if the process ends in order. Raises what `setup` raises."""
        with self._modules.entered():
            self._hook(self.handler.setup, context)
        atexit.register(self._tear_down, context)

    def perform(self, records: Sequence[Record], go_on: GoOn = _always) -> list[Result]:
        """Call the handler; one result for each record, or for the first ones if `go_on` said no after a call. The
        records are the handler's own afterwards."""
        with self._modules.entered():
            call = HandlerCall(list(records), threading.get_ident())
            token = CURRENT_CALL.set(call)
            try:
                if self.handler.asynchronous:
                    return self._run(self._perform_async(records, call, go_on))
                if self.batch:
                    return self._performer.perform(records)
                return self._one_by_one(records, call, go_on)
            finally:
                CURRENT_CALL.reset(token)

    def _one_by_one(self, records: Sequence[Record], call: HandlerCall, go_on: GoOn) -> list[Result]:
        results: list[Result] = []
        for record in records:
            call.records = [record]
            results += self._performer.perform(call.records)
            if not go_on(results[-1]):
                break
        return results

    async def _perform_async(self, records: Sequence[Record], call: HandlerCall, go_on: GoOn) -> list[Result]:
        if self.batch:
            return await self._performer.perform_async(records)
        results: list[Result] = []
        for record in records:
            call.records = [record]
            results += await self._performer.perform_async(call.records)
            if not go_on(results[-1]):
                break
        return results

    def _tear_down(self, context: HandlerContext) -> None:
        try:
            with self._modules.entered():
                self._hook(self.handler.teardown, context)
        except Exception:
            LOG.exception("the handler's teardown failed")

    def _hook(self, hook: object, context: HandlerContext) -> None:
        outcome = hook(context)  # type: ignore[operator]
        if inspect.iscoroutine(outcome):
            self._run(outcome)

    def _run(self, coroutine: object) -> list[Result]:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(coroutine)  # type: ignore[arg-type]


def context_of(worker: WorkerConfig, name: str, purpose: str) -> HandlerContext:
    """The context of `setup` in a process of a backfill."""
    return HandlerContext(
        namespace=worker.namespace,
        name=worker.name,
        group_id=worker.group_id,
        revision=worker.revision,
        worker=name,
        purpose=purpose,
    )
