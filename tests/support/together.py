"""Concurrent tests of one folder, because they mostly wait.

A folder's conftest enables it in its `pytest_configure`. The tests marked `together` come before the folder's others,
the longest by `tests/durations.json` first. They start with the first of them, a few at a time, while the processors
have capacity; each still fails on its own. The folder's other tests run one by one after them. Tests marked
`together("name")` run one after another among themselves, because several of them would overload the machine.
A marked test uses names of its own, and leaves shared things running and complete. It may use its parameters,
`tmp_path`, session fixtures, and the suites' own fixtures of single tests, which are created and ended where it runs;
but not pytest's fixtures that change or record the state of the whole process.

Session fixtures are created one by one, before the tests that need them start. A slow one is `Later`: the first test
that needs it creates it, next to the others.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar

import pytest

from tests.support.durations import seconds_of_test
from tests.support.room import has_room

__all__ = ["ALONE", "Later", "play_together"]

T = TypeVar("T")

ALONE = "FLEET_TESTS_ALONE"
"""An environment variable with which marked tests run one by one too. `support.suites` sets it to repeat a failed test
alone."""
TURN_S = 0.5
"""Seconds between two checks for capacity."""


def play_together(config: pytest.Config, folder: Path, at_once: int, room: Callable[[], bool] = has_room) -> None:
    """Run the marked tests in `folder` concurrently, `at_once` of them and one of each named lane; one at a time if
    `ALONE` is set, and while there is no `room`."""
    config.addinivalue_line("markers", "together(lane): played at the same time as others, one after another in a lane")
    config.pluginmanager.register(_Together(folder, None if os.environ.get(ALONE) else at_once, room))


class Later(Generic[T]):
    """A shared resource, created by the first test that asks for it; the others wait meanwhile.

    If that fails, each test that asks tries again and fails on its own.
    """

    def __init__(self, made: Callable[[], AbstractContextManager[T]]) -> None:
        self._enter = made
        self._lock = Lock()
        self._made: list[T] = []
        self._ends = ExitStack()

    def get(self) -> T:
        with self._lock:
            if not self._made:
                self._made.append(self._ends.enter_context(self._enter()))
            return self._made[0]

    def __enter__(self) -> Later[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()


class _Turnstile:
    """Admits one test at any time, and more while the processors have capacity; a context manager for each test."""

    def __init__(self, room: Callable[[], bool]) -> None:
        self._room = room
        self._lock = Lock()
        self._inside = 0

    def __enter__(self) -> None:
        while not self._let_in():
            time.sleep(TURN_S)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1

    def _let_in(self) -> bool:
        with self._lock:
            free = self._inside == 0 or self._room()
            self._inside += free
            return free


class _Together:
    def __init__(self, folder: Path, at_once: int | None, room: Callable[[], bool]) -> None:
        self._folder = folder
        self._at_once = at_once
        # By lane name; the lane without a name has the tests that run concurrently.
        self._pools: dict[str, ThreadPoolExecutor] = {}
        # The future of each run by the test's id; its result is the duration in seconds.
        self._plays: dict[str, Future[float]] = {}
        self._turnstile = _Turnstile(room)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        places = [place for place, item in enumerate(items) if self._folder in item.path.parents]
        mine = sorted((items[place] for place in places), key=self._turn)
        for place, item in zip(places, mine, strict=True):
            items[place] = item
            if isinstance(item, pytest.Function) and self._marked(item):
                # Otherwise pytest would create the others too when it comes to this test.
                item.fixturenames = [name for name in item.fixturenames if _is_shared(item, name)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Wait for a marked test's run; the first one of the folder starts them all."""
        if not self._marked(pyfuncitem):
            return None
        if not self._pools:
            for item in pyfuncitem.session.items:
                if isinstance(item, pytest.Function) and self._marked(item) and not _is_skipped(item):
                    self._plays[item.nodeid] = self._begun(item)
        self._plays[pyfuncitem.nodeid].result()
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Report a test's own duration, not the wait for its end."""
        report = yield
        play = self._plays.get(item.nodeid)
        if call.when == "call" and play is not None and play.done() and play.exception() is None:
            report.duration = play.result()
        return report

    def pytest_sessionfinish(self) -> None:
        """Start nothing more after a run that was stopped early."""
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)

    def _begun(self, item: pytest.Function) -> Future[float]:
        marker = item.get_closest_marker("together")
        lane = str(marker.args[0]) if marker is not None and marker.args and self._at_once is not None else ""
        if lane not in self._pools:
            at_once = 1 if lane or self._at_once is None else self._at_once
            self._pools[lane] = ThreadPoolExecutor(at_once, thread_name_prefix=f"together-{lane}")
        try:
            return self._pools[lane].submit(_Play(item).run, self._turnstile)
        except Exception as error:
            # A test's error is raised when pytest comes to it.
            failed: Future[float] = Future()
            failed.set_exception(error)
            return failed

    def _turn(self, item: pytest.Item) -> tuple[bool, float]:
        marked = self._marked(item)
        return not marked, -seconds_of_test(item.nodeid) if marked else 0.0

    def _marked(self, item: pytest.Item) -> bool:
        return self._folder in item.path.parents and item.get_closest_marker("together") is not None


class _Play:
    """One test with its arguments. Created on the thread that runs tests, with shared fixtures; `run` on any."""

    def __init__(self, item: pytest.Function) -> None:
        self._item = item
        self._given: dict[str, Any] = dict(item.callspec.params) if hasattr(item, "callspec") else {}
        for name in (name for marker in item.iter_markers("usefixtures") for name in marker.args):
            # pytest would create it later, but the run starts before.
            assert _is_shared(item, name), f"{item.nodeid} runs concurrently, and cannot use {name}"
            item._request.getfixturevalue(name)
        self._share(item.obj)

    def _share(self, taker: Any) -> None:
        for name in inspect.signature(taker).parameters:
            if name in self._given:
                continue
            if name == "tmp_path":
                folders: pytest.TempPathFactory = self._item._request.getfixturevalue("tmp_path_factory")
                self._given[name] = folders.mktemp(self._item.originalname[:30])
            elif _is_shared(self._item, name):
                self._given[name] = self._item._request.getfixturevalue(name)
            else:
                fixture = _definition(self._item, name)
                ours = fixture.scope == "function" and not fixture.func.__module__.startswith(("_pytest", "pytest"))
                assert ours, f"{self._item.nodeid} runs concurrently, and cannot take {name}"
                self._share(fixture.func)

    def run(self, turnstile: _Turnstile) -> float:
        """Run the test once it is admitted; returns its duration in seconds."""
        with turnstile, ExitStack() as ends:
            started = time.monotonic()
            self._item.obj(**self._taken(self._item.obj, ends))
        return time.monotonic() - started

    def _taken(self, taker: Any, ends: ExitStack) -> dict[str, Any]:
        names = list(inspect.signature(taker).parameters)
        for name in names:
            if name not in self._given:
                make = _definition(self._item, name).func
                made = make(**self._taken(make, ends))
                if inspect.isgenerator(made):
                    # Like pytest: the code after the yield also runs if the test has failed.
                    ends.callback(next, made, None)
                    made = next(made)
                self._given[name] = made
        return {name: self._given[name] for name in names}


def _definition(item: pytest.Function, name: str) -> pytest.FixtureDef[Any]:
    found = item._fixtureinfo.name2fixturedefs.get(name)
    assert found, f"{item.nodeid} runs concurrently, and cannot take {name}"
    return found[-1]


def _is_skipped(item: pytest.Function) -> bool:
    """True if pytest will skip the test, so that it must not start earlier."""
    return any(condition is True for marker in item.iter_markers("skipif") for condition in marker.args)


def _is_shared(item: pytest.Function, name: str) -> bool:
    found = item._fixtureinfo.name2fixturedefs.get(name)
    return bool(found) and _definition(item, name).scope == "session"
