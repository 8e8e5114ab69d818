"""A task's work: the order that the driver sends, filter and pace, and the handlers that a process keeps between tasks.

Two handlers of a comparison may have modules of the same name. Each folder's own modules are in `sys.modules` only
while its handler runs, so that imports at call time find the right ones as well.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from fleet_consumer.backfill.errors import TaskFailed
from fleet_consumer.clock import Clock
from fleet_consumer.contract.backfill_config import BackfillConfig, BackfillFilter, parse_config
from fleet_consumer.contract.policies import Policies, Policy, parse_policies
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.contract.worker_config import HandlerConfig, PythonSource
from fleet_consumer.handlers.call import CURRENT_CALL, HandlerCall
from fleet_consumer.handlers.loading import (
    Handler,
    HandlerContext,
    HandlerImportFailed,
    HandlerNotCallable,
    load_handler,
)
from fleet_consumer.handlers.performing import Outputs, Performer, Result, decoder
from fleet_consumer.record import Headers, Record
from fleet_consumer.worker.config.settings import context_of, with_environment
from fleet_consumer.worker.logs import JsonFormatter, TextFormatter, in_hand

LOG = logging.getLogger("fleet_consumer.backfill")


GoOn = Callable[[Result], bool]
"""Asked after each call with its last result: whether the next record is handled."""


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

    def set_up(self, context: HandlerContext) -> None:
        """Run `setup`, and have `teardown` run if the process ends in order. Raises what `setup` raises."""
        with self._modules.entered():
            self._hook(self.handler.setup, context)
        atexit.register(self._tear_down, context)

    def perform(self, records: Sequence[Record], go_on: GoOn = lambda result: True) -> list[Result]:
        """Call the handler; one result for each record, or for the first ones if `go_on` said no after a call. The
        records are the handler's own afterwards."""
        with self._modules.entered():
            call = HandlerCall(list(records), threading.get_ident())
            token = CURRENT_CALL.set(call)
            try:
                if self.handler.asynchronous:
                    return self._run(self._perform_async(records, call, go_on))
                if self.handler.batch:
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
        if self.handler.batch:
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


GROUP_S: Final = 0.25
"""A group of records is as large as is handled in this time, or in what is left."""


class Pacer:
    """Decides before each record whether it is taken now. The first one always is, whatever the time.

    `rate` is in records per second, None without a limit.
    """

    def __init__(
        self, seconds: float, rate: float | None, clock: Clock, wait: Callable[[float], object] | None = None
    ) -> None:
        self._clock = clock
        self._wait = wait or threading.Event().wait
        self._began = clock.monotonic()
        self._deadline = self._began + seconds
        self._interval = 0.0 if rate is None else 1.0 / rate
        self._next_at = self._began
        self._taken = 0
        self.waited = 0.0

    def may_take(self, records: int = 1) -> bool:
        """True if so many records may be handled now, after a wait if the rate asks for one; False at the end."""
        now = self._clock.monotonic()
        if self._taken and max(now, self._next_at) >= self._deadline:
            return False
        if self._next_at > now:
            self._wait(self._next_at - now)
            self.waited += self._next_at - now
        # Time that was not used is lost: it would come back as a burst.
        self._next_at = max(self._next_at, now) + records * self._interval
        self._taken += records
        return True

    def group(self, most: int) -> int:
        """The number of records to handle together next: from one up, by the speed so far."""
        elapsed = self._clock.monotonic() - self._began
        if not self._taken:
            return 1
        left = max(0.0, self._deadline - self._began - elapsed)
        fit = int(min(GROUP_S, left) * self._taken / elapsed) if elapsed > 0 else most
        if self._interval:
            fit = min(fit, max(1, int(GROUP_S / self._interval)))
        return max(1, min(most, fit, 2 * self._taken))

    def in_time(self) -> bool:
        return self._clock.monotonic() < self._deadline

    @property
    def seconds(self) -> float:
        return self._clock.monotonic() - self._began


class Selection:
    """The filter, prepared for many records."""

    def __init__(self, chosen: BackfillFilter) -> None:
        self._key = chosen.key
        self._headers = [(name, value.encode()) for name, value in chosen.headers.items()]
        self._from_ms, self._to_ms = chosen.from_ms, chosen.to_ms
        self.takes_all = not (self._key or self._headers) and self._from_ms is None and self._to_ms is None

    def takes(self, timestamp: int, key: bytes | None, headers: Headers) -> bool:
        """True if the record is selected. Bytes of a key that are no UTF-8 match no literal."""
        if self._from_ms is not None and timestamp < self._from_ms:
            return False
        if self._to_ms is not None and timestamp >= self._to_ms:
            return False
        if self._key is not None and (key is None or not self._key.found_in(key.decode("utf-8", "replace"))):
            return False
        return all(header in headers for header in self._headers)


LIVE: Final = "Live"
CANDIDATE: Final = "Candidate"
BOTH: Final = "Both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A task's order. It holds no secret: what the tasks need of those they read from mounted files.

    `seconds` bound the time in which a task takes records, `rate` is its share of the rate limit. `limits` are the
    `max.message.bytes` of topics that it may write to, as far as they are known.
    """

    config: str
    policies: str | None
    attempt: int
    seconds: float
    rate: float | None
    limits: Mapping[str, int]


@lru_cache(maxsize=1)
def config_of(text: str) -> BackfillConfig:
    """The settings of an order, with the environment of this process applied. Raises TaskFailed."""
    config = parse_config(json.loads(text))
    try:
        return replace(config, worker=with_environment(config.worker, os.environ))
    except SettingsInvalid as error:
        raise TaskFailed(error.reason, str(error), final=True) from error


@lru_cache(maxsize=1)
def policies_of(text: str | None) -> Policies | None:
    return None if text is None else parse_policies(json.loads(text))


def policy_of(work: Work) -> Policy | None:
    """The revision that a failure is classified by."""
    policies = policies_of(work.policies)
    return None if policies is None else policies.newest


def sources_of(config: BackfillConfig) -> dict[str, PythonSource]:
    """The handlers that this Backfill calls, by `Live` and `Candidate`."""
    assert config.worker.handler.python is not None, "the settings were checked"
    sources = {LIVE: config.worker.handler.python}
    if config.compare is not None:
        sources[CANDIDATE] = config.compare.candidate
        if config.compare.handlers != BOTH:
            return {config.compare.handlers: sources[config.compare.handlers]}
    return sources


_LOADED: dict[str, dict[str, LoadedHandler]] = {}


def handlers_of(work: Work) -> dict[str, LoadedHandler]:
    """The handlers of this process, imported and set up by its first task. Raises TaskFailed.

    Called on executors only: the driver holds a token for Kubernetes, and runs nothing of the handler's.
    """
    if work.config not in _LOADED:
        config = config_of(work.config)
        _log_as(config)
        name = os.environ.get("POD_NAME") or os.environ.get("HOSTNAME") or config.name
        context = context_of(config.worker, name, "backfill" if config.compare is None else "compare")
        sources, settings = sources_of(config), config.worker.handler
        try:
            loaded = {side: LoadedHandler(each, settings, apart=len(sources) > 1) for side, each in sources.items()}
        except (HandlerImportFailed, HandlerNotCallable) as error:
            raise TaskFailed(error.reason, str(error), final=True) from error
        for side, each in loaded.items():
            try:
                each.set_up(context)
            except BaseException as error:
                seen = f"{type(error).__name__}: {error}" if settings.error_text else type(error).__name__
                message = f"setup of the handler {each.handler.spec!r} ({side}) failed: {seen}"
                raise TaskFailed("SetupFailed", message, final=False) from error
        _LOADED[work.config] = loaded
    return _LOADED[work.config]


def _log_as(config: BackfillConfig) -> None:
    """Log to standard error as workers do, with the coordinates of the record in hand."""
    log = config.worker.log
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter((JsonFormatter if log.format == "Json" else TextFormatter)(in_hand(lambda: None, None)))
    logging.basicConfig(level=log.level.upper(), handlers=[handler], force=True)


def policies_text(path: str | None) -> str | None:
    """The text of the mounted policies.json, checked. Raises PolicyInvalid, OSError and ValueError."""
    if path is None:
        return None
    text = Path(path).read_text(encoding="utf-8")
    document: Any = json.loads(text)
    parse_policies(document)
    return text
