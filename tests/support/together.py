"""Tests of one folder that are played at the same time: most of what they do is wait.

A folder's conftest asks for it in its `pytest_configure`. Then the tests marked `together` come before the folder's
others and begin with the first of them, a few at a time; each still fails by itself, and the others run one by one
after them. A marked test takes its parameters, `tmp_path` and fixtures of the session or of its module, nothing else;
it has names of its own, and leaves what is shared as it was: running, with everything that was in it.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

__all__ = ["play_together"]

SHARED_SCOPES = ("session", "package", "module")


def play_together(config: pytest.Config, folder: Path, at_once: int) -> None:
    """Play the marked tests in `folder` at the same time, `at_once` of them."""
    config.addinivalue_line("markers", "together: played at the same time as the others of its folder")
    config.pluginmanager.register(_Together(folder, at_once))


class _Together:
    def __init__(self, folder: Path, at_once: int) -> None:
        self._folder = folder
        self._at_once = at_once
        self._pool: ThreadPoolExecutor | None = None
        # What each play came to, and when it is over how many seconds it took, by the test's id.
        self._plays: dict[str, Future[float]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        places = [place for place, item in enumerate(items) if self._folder in item.path.parents]
        mine = sorted((items[place] for place in places), key=lambda item: not self._marked(item))
        for place, item in zip(places, mine, strict=True):
            items[place] = item

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """The end of a marked test is that of its play; the first one of the folder begins them all."""
        if not self._marked(pyfuncitem):
            return None
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._at_once, thread_name_prefix="together")
            for item in pyfuncitem.session.items:
                if isinstance(item, pytest.Function) and self._marked(item):
                    self._plays[item.nodeid] = self._pool.submit(_play, _prepared(item, pyfuncitem))
        self._plays[pyfuncitem.nodeid].result()
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """A play's own time is told, not how long was waited for its end."""
        report = yield
        play = self._plays.get(item.nodeid)
        if call.when == "call" and play is not None and play.done() and play.exception() is None:
            report.duration = play.result()
        return report

    def pytest_sessionfinish(self) -> None:
        """After a run that was stopped early nothing more begins."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _marked(self, item: pytest.Item) -> bool:
        return self._folder in item.path.parents and item.get_closest_marker("together") is not None


def _prepared(item: pytest.Function, first: pytest.Function) -> Callable[[], object]:
    """The test with all that it takes; shared fixtures are made at once, by the test that runs first."""
    request = first._request
    given: dict[str, object] = {}
    for name in inspect.signature(item.obj).parameters:
        if hasattr(item, "callspec") and name in item.callspec.params:
            given[name] = item.callspec.params[name]
        elif name == "tmp_path":
            folders: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
            given[name] = folders.mktemp(item.originalname[:30])
        else:
            scope = item._fixtureinfo.name2fixturedefs[name][-1].scope
            assert scope in SHARED_SCOPES, f"{item.nodeid} is played with others and takes {name}, which is not shared"
            given[name] = request.getfixturevalue(name)
    return lambda: item.obj(**given)


def _play(prepared: Callable[[], object]) -> float:
    started = time.monotonic()
    prepared()
    return time.monotonic() - started
