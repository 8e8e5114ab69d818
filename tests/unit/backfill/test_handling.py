"""Handlers of a comparison side by side: each finds its own modules, also those that it imports when it is called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fleet_consumer.backfill.work import LoadedHandler
from fleet_consumer.contract.worker_config import PythonSource, WorkerConfig, parse_config
from fleet_consumer.record import Record
from fleet_consumer.worker.config.settings import context_of
from tests.unit.worker.documents import worker_document

HANDLER = """
import shared
from fleet_consumer import Produce

WHO = {who!r}
SETUP = []

def setup(context):
    SETUP.append((context.purpose, context.worker))

def handle(record):
    import lazy
    from package import inner
    record.headers = [("touched", b"1")]
    return Produce("done", "/".join([WHO, shared.WHO, lazy.WHO, inner.WHO, SETUP[0][0]]), key=record.value["k"])
"""


def source(folder: Path, who: str, text: str = HANDLER) -> PythonSource:
    (folder / "package").mkdir(parents=True)
    (folder / "handler.py").write_text(text.format(who=who))
    for name in ("shared.py", "lazy.py", "package/inner.py", "package/__init__.py"):
        (folder / name).write_text(f"WHO = {who!r}\n")
    return PythonSource(callable="handler:handle", path=str(folder))


def worker(**handler: Any) -> WorkerConfig:
    document = worker_document()
    return parse_config({**document, "handler": {**document["handler"], "outputs": ["done"], **handler}})


def record() -> Record:
    return Record("t", 0, 5, 1, b"key", b'{"k": "v"}', [("a", b"1")])


def test_modules_of_the_same_names_do_not_meet(tmp_path: Path) -> None:
    settings = worker().handler
    live = LoadedHandler(source(tmp_path / "live", "live"), settings, apart=True)
    candidate = LoadedHandler(source(tmp_path / "candidate", "candidate"), settings, apart=True)
    context = context_of(worker(), "pod-1", "compare")
    for each in (live, candidate):
        each.set_up(context)
    for _ in range(2):
        for who, each in (("live", live), ("candidate", candidate)):
            (result,) = each.perform([record()])
            assert result.error is None
            assert result.produces[0].value == "/".join([who] * 4 + ["compare"])
            assert result.produces[0].key == "v", "the value was decoded"
    assert "handler" not in sys.modules
    assert "lazy" not in sys.modules
    assert not [entry for entry in sys.path if str(tmp_path) in entry]


def test_module_of_the_image_is_hidden_only_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = tmp_path / "image"
    image.mkdir()
    (image / "shared.py").write_text("WHO = 'image'\n")
    monkeypatch.syspath_prepend(str(image))
    import importlib

    before = importlib.import_module("shared")
    try:
        candidate = LoadedHandler(source(tmp_path / "candidate", "candidate"), worker().handler, apart=True)
        candidate.set_up(context_of(worker(), "pod-1", "compare"))
        (result,) = candidate.perform([record()])
        assert str(result.produces[0].value).startswith("candidate/candidate/")
        assert sys.modules["shared"] is before
    finally:
        del sys.modules["shared"]


ASYNCHRONOUS = """
import asyncio
from fleet_consumer import Produce
LOOPS = []
async def setup(context):
    LOOPS.append(asyncio.get_running_loop())
async def handle(record):
    await asyncio.sleep(0 if record.value["k"] == "v" else 60)
    assert LOOPS[0] is asyncio.get_running_loop()
    return [Produce("done", {who!r})]
"""


def test_asynchronous_handler_has_one_loop_and_a_timeout(tmp_path: Path) -> None:
    found = source(tmp_path / "live", "live", ASYNCHRONOUS)
    handler = LoadedHandler(found, worker(timeoutSeconds=1).handler, apart=True)
    handler.set_up(context_of(worker(), "pod-1", "backfill"))
    slow = Record("t", 0, 6, 1, b"key", b'{"k": "slow"}')
    done, late = handler.perform([record()]), handler.perform([slow])
    assert done[0].error is None
    assert type(late[0].error).__name__ == "TimedOut"


def test_purpose_is_live_in_workers() -> None:
    from fleet_consumer.handlers.loading import HandlerContext

    assert HandlerContext(namespace="n", name="g", group_id="g", revision="r", worker="w").purpose == "live"
