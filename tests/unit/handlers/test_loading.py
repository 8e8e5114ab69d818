"""A handler that cannot be had is refused with a message that tells its author where to look."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet_consumer.handlers.loading import (
    HandlerContext,
    HandlerImportFailed,
    HandlerKindUnsupported,
    HandlerNotCallable,
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
    assert handler.handle(Record("t", 0, 0, 0, None, b"v")) == Produce("done", b"v")


def test_method_of_an_object_and_a_callable_object_are_handlers(folder: Path) -> None:
    path = write(
        folder,
        "class Shop:\n"
        "    def orders(self, record): return None\n"
        "    def __call__(self, record): return None\n"
        "shop = Shop()\n",
    )
    assert load_handler("handler:shop.orders", path).handle(Record("t", 0, 0, 0, None, None)) is None
    assert load_handler("handler:shop", path).handle(Record("t", 0, 0, 0, None, None)) is None


def test_module_of_the_image_needs_no_folder() -> None:
    assert load_handler("json:loads", None).spec == "json:loads"


@pytest.mark.parametrize(
    ("source", "spec", "told"),
    [
        ("x = 1", "other:handle", r"no module 'other', neither in .* nor in the image; the folder holds handler.py"),
        ("import nowhere_at_all", "handler:handle", r"handler.py, line 1: ModuleNotFoundError.*nowhere_at_all"),
        ("\n\ndef handle(:\n", "handler:handle", r"handler.py, line 3: SyntaxError"),
        ("a = 1\nraise SystemExit(4)", "handler:handle", r"handler.py, line 2: SystemExit: 4"),
        ("def f():\n    return {}['a']\nf()", "handler:handle", r"handler.py, line 2: KeyError"),
        ("x = 1", "handler", r"not of the form `module:callable`"),
    ],
    ids=["module missing", "dependency missing", "syntax", "exits", "raises", "no colon"],
)
def test_import_that_fails_names_cause_and_line(folder: Path, source: str, spec: str, told: str) -> None:
    with pytest.raises(HandlerImportFailed, match=told):
        load_handler(spec, write(folder, source))


def test_folder_that_does_not_exist_is_named(folder: Path) -> None:
    with pytest.raises(HandlerImportFailed, match="gone does not exist"):
        load_handler("handler:handle", str(folder / "gone"))


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def hanlde(record): pass", r"no 'handle'; it has hanlde"),
        ("handle = 'text'", r"is a str, which cannot be called"),
        ("def handle(): pass", r"cannot be called with one record: too many positional arguments"),
        ("def handle(a, b): pass", r"cannot be called with one record: missing a required argument: 'b'"),
        ("def handle(record): pass\nsetup = 5", r"'setup' beside it is a int"),
    ],
    ids=["misspelt", "no function", "takes nothing", "takes two", "setup is no function"],
)
def test_name_that_cannot_be_called_says_why(folder: Path, source: str, told: str) -> None:
    with pytest.raises(HandlerNotCallable, match=told):
        load_handler("handler:handle", write(folder, source))


@pytest.mark.parametrize(
    ("source", "spec", "told"),
    [
        ("async def handle(record): pass", "handler:handle", "asynchronous"),
        ("async def handle(record): yield", "handler:handle", "asynchronous"),
        ("class H:\n    async def __call__(self, r): pass\nhandle = H()", "handler:handle", "asynchronous"),
        ("def handle(r): pass\nasync def setup(c): pass", "handler:handle", "'setup' is asynchronous"),
        ("def handle_batch(records): pass", "handler:handle_batch", "batches"),
    ],
)
def test_kind_of_a_later_version_is_refused_naming_the_field(folder: Path, source: str, spec: str, told: str) -> None:
    with pytest.raises(HandlerKindUnsupported, match=told) as caught:
        load_handler(spec, write(folder, source))
    assert caught.value.field == "handler.python.callable"
