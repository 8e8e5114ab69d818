"""One broker for the suite, and tests of one module that are played at the same time.

Most of what is tested here is waiting. Tests that are marked `together` and need nothing but `kafka`, `tmp_path` and
their parameters begin with the first of them that runs, a few at a time; each still fails by itself. A test that breaks
the broker is not marked, and leaves it running, with everything that was in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.broker.workers import Kafka
from tests.support.kafka import KafkaBroker

SHORT_SESSIONS = {"group.min.session.timeout.ms": "1000"}
"""So that a test need not wait six seconds for a dead member to be noticed."""

AT_ONCE = 3
"""How many play at a time: each has two or three processes, which mostly wait."""

PLAYED = pytest.StashKey[dict[str, "Future[object]"]]()
POOL = pytest.StashKey[ThreadPoolExecutor]()


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    """A running broker, shared: use names of your own for topics and groups."""
    with KafkaBroker(properties=SHORT_SESSIONS) as running:
        yield running


@pytest.fixture(scope="session")
def kafka(broker: KafkaBroker) -> Kafka:
    """The tests' own view of it."""
    return Kafka(broker.bootstrap)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "together: played at the same time as the others of its module")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """The end of a marked test is that of its play; the first one of a module begins them all."""
    if pyfuncitem.get_closest_marker("together") is None:
        return None
    stash = pyfuncitem.session.stash
    played = stash.setdefault(PLAYED, {})
    if pyfuncitem.nodeid not in played:
        pool = stash.setdefault(POOL, ThreadPoolExecutor(AT_ONCE))
        folders: pytest.TempPathFactory = pyfuncitem._request.getfixturevalue("tmp_path_factory")
        for item in marked(pyfuncitem):
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            given = {"kafka": pyfuncitem.funcargs["kafka"], "tmp_path": folders.mktemp(item.originalname[:30])}
            played[item.nodeid] = pool.submit(item.obj, **given, **parameters)
    played.pop(pyfuncitem.nodeid).result()
    return True


def marked(one: pytest.Function) -> list[pytest.Function]:
    """The tests of this one's module that were chosen and are played together, itself among them."""
    functions = [item for item in one.session.items if isinstance(item, pytest.Function) and item.module is one.module]
    return [item for item in functions if item.get_closest_marker("together") is not None]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """After a run that was stopped early nothing more begins."""
    pool = session.stash.get(POOL, None)
    if pool is not None:
        pool.shutdown(cancel_futures=True)
