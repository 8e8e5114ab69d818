"""A handler that cannot be loaded is refused with a message that names the place of the error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet_consumer.handlers.loading import (
    HandlerContext,
    load_handler,
)
from fleet_consumer.record import Produce, Record

CONTEXT = HandlerContext(namespace="default", name="flights", group_id="flights", revision="r", worker="flights-0")


@pytest.fixture(autouse=True)
def _imports_are_undone() -> Iterator[None]:
    modules, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def write(folder: Path, source: str, name: str = "handler.py") -> str:
    (folder / name).write_text(source)
    return str(folder)


def test_function_in_a_folder_is_loaded_with_its_hooks(folder: Path) -> None:
    path = write(
        folder,
        "from fleet_consumer import Produce\n"
        "seen = []\n"
        "def setup(context): seen.append(context.name)\n"
        "def teardown(context): seen.clear()\n"
        "def handle(record): return Produce('done', record.value)\n",
    )
    handler = load_handler("handler:handle", path)
    handler.setup(CONTEXT)
    assert sys.modules["handler"].seen == ["flights"]
    handler.teardown(CONTEXT)
    assert sys.modules["handler"].seen == []
    assert handler.call(Record("t", 0, 0, 0, None, b"v")) == Produce("done", b"v")


def test_method_of_an_object_and_a_callable_object_are_handlers(folder: Path) -> None:
    path = write(
        folder,
        "class Shop:\n"
        "    def orders(self, record): return None\n"
        "    def __call__(self, record): return None\n"
        "shop = Shop()\n",
    )
    assert load_handler("handler:shop.orders", path).call(Record("t", 0, 0, 0, None, None)) is None
    assert load_handler("handler:shop", path).call(Record("t", 0, 0, 0, None, None)) is None


def test_module_of_the_image_needs_no_folder() -> None:
    assert load_handler("json:loads", None).spec == "json:loads"


@pytest.mark.parametrize(
    ("source", "spec", "batch", "asynchronous"),
    [
        ("def handle(record): pass", "handler:handle", False, False),
        ("async def handle(record): pass", "handler:handle", False, True),
        ("class H:\n    async def __call__(self, r): pass\nhandle = H()", "handler:handle", False, True),
        ("def handle_batch(records): pass", "handler:handle_batch", True, False),
        ("async def handle_batch(records): pass", "handler:handle_batch", True, True),
        ("class H:\n    async def handle_batch(self, r): pass\nh = H()", "handler:h.handle_batch", True, True),
    ],
)
def test_kind_is_read_from_the_callable(folder: Path, source: str, spec: str, batch: bool, asynchronous: bool) -> None:
    handler = load_handler(spec, write(folder, source))
    assert (handler.batch, handler.asynchronous) == (batch, asynchronous)


def test_asynchronous_hooks_belong_to_asynchronous_handlers(folder: Path) -> None:
    source = "async def handle(r): pass\nasync def setup(c): pass\ndef teardown(c): pass"
    assert load_handler("handler:handle", write(folder, source)).asynchronous
