"""Import of an application's handler, with precise errors.

`module:callable` is imported from the image, or from a folder that is put in front of the import path. This runs the
application's code, so it happens only in pods made for the group.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from fleet_consumer.handlers.call import end_forked_child

BATCH_NAME: Final = "handle_batch"


class HandlerImportFailed(Exception):
    """The handler's module cannot be imported; the message gives the cause and, if known, file and line."""

    reason = "HandlerImportFailed"


class HandlerNotCallable(Exception):
    """The module was imported, but the name in it is missing or not callable with one record."""

    reason = "HandlerNotCallable"


@dataclass(frozen=True, slots=True)
class HandlerContext:
    """The fleet and worker, for `setup` and `teardown`.

    `purpose` is `live` in workers, `backfill` in a Backfill, `compare` where two handlers are compared, and `dryRun` in
    a dry run with a sample, so that a handler with effects of its own can leave them out.
    """

    namespace: str
    name: str
    group_id: str
    revision: str
    worker: str
    purpose: str = "live"


def _nothing(context: HandlerContext) -> None:
    """Default `setup` and `teardown`."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler, ready to be called; `setup` and `teardown` run once in each worker.

    `call` takes one record, or a list of them if `batch`; if `asynchronous` it returns a coroutine, and so may the
    hooks. `times_itself`: it enforces its own timeout. `takes_bytes`: decoding only validates. `last_error` returns the
    error that prevents calls at the moment.
    """

    spec: str
    call: Callable[[Any], Any]
    setup: Callable[[HandlerContext], Any] = _nothing
    teardown: Callable[[HandlerContext], Any] = _nothing
    batch: bool = False
    asynchronous: bool = False
    times_itself: bool = False
    takes_bytes: bool = False
    last_error: Callable[[], Exception | None] = lambda: None


def load_handler(spec: str, path: str | None) -> Handler:
    """Import `spec` ("package.module:callable"), first looking in the folder `path`.

    A callable whose own name is `handle_batch` takes lists of records; a coroutine function is asynchronous. Raises
    HandlerImportFailed or HandlerNotCallable. Only one handler per process: modules stay imported.
    """
    module_name, _, attribute = spec.partition(":")
    if not module_name or not attribute:
        raise HandlerImportFailed(f"handler {spec!r} is not of the form `module:callable`")
    module = _import(spec, module_name, path)
    target = _attribute(spec, module, attribute)
    asynchronous = _is_asynchronous(spec, target)
    return Handler(
        spec,
        target,
        _hook(spec, module, "setup", asynchronous),
        _hook(spec, module, "teardown", asynchronous),
        batch=attribute.rpartition(".")[2] == BATCH_NAME,
        asynchronous=asynchronous,
    )


def add_import_folder(path: str) -> None:
    """Put the folder of the application's source in front of the import path. Idempotent.

    Custom assignors live there too, so this comes before anything of the application is imported.
    """
    if path not in sys.path:
        sys.path.insert(0, path)
    importlib.invalidate_caches()


def _import(spec: str, module_name: str, path: str | None) -> ModuleType:
    if path is not None:
        if not Path(path).is_dir():
            raise HandlerImportFailed(f"handler {spec!r}: the folder {path} does not exist")
        add_import_folder(path)
    here = os.getpid()
    try:
        return importlib.import_module(module_name)
    except BaseException as error:  # a module's top level may raise anything, SystemExit included
        end_forked_child(here, error)
        raise HandlerImportFailed(_why_import_failed(spec, module_name, path, error)) from error


def _why_import_failed(spec: str, module_name: str, path: str | None, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
        where = f"neither in {path} nor in the image" if path else "not in the image"
        found = _python_files(path) if path else ""
        return f"handler {spec!r}: there is no module {error.name!r}, {where}{found}"
    if isinstance(error, SyntaxError):
        place = f"{Path(error.filename or '?').name}, line {error.lineno}"
        return f"handler {spec!r}: {place}: {type(error).__name__}: {error.msg}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in {__file__, importlib.__file__} and not frame.filename.startswith("<frozen ")
    ]
    place = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}: " if frames else ""
    return f"handler {spec!r}: {place}{type(error).__name__}: {error}"


def _python_files(path: str) -> str:
    names = sorted(entry.name for entry in Path(path).iterdir() if entry.suffix == ".py" or entry.is_dir())
    visible = [name for name in names if not name.startswith((".", "__"))]
    return f"; the folder holds {', '.join(visible[:10]) or 'no Python file'}"


def _attribute(spec: str, module: ModuleType, attribute: str) -> Any:
    target: Any = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            public = sorted(name for name, value in vars(module).items() if callable(value) and name[:1] != "_")
            raise HandlerNotCallable(
                f"handler {spec!r}: module {module.__name__!r} has no {attribute!r}; "
                f"it has {', '.join(public[:10]) or 'no callable'}"
            )
        target = getattr(target, part)
    return target


def _is_asynchronous(spec: str, target: Any) -> bool:
    """True for a coroutine function. Raises HandlerNotCallable if the handler cannot be called with records."""
    if not callable(target):
        raise HandlerNotCallable(f"handler {spec!r} is a {type(target).__name__}, not a function; name a callable")
    code = target if inspect.isroutine(target) or inspect.isclass(target) else type(target).__call__
    if inspect.isasyncgenfunction(code):
        raise HandlerNotCallable(f"handler {spec!r} is an asynchronous generator; return a list of its outputs instead")
    try:
        inspect.signature(target).bind(object())
    except TypeError as error:
        raise HandlerNotCallable(f"handler {spec!r} cannot be called with one argument: {error}") from error
    except ValueError:
        return False  # some C callables have no signature; the first call will raise
    return inspect.iscoroutinefunction(code)


def _hook(spec: str, module: ModuleType, name: str, asynchronous: bool) -> Callable[[HandlerContext], Any]:
    hook = getattr(module, name, None)
    if hook is None:
        return _nothing
    if not callable(hook):
        raise HandlerNotCallable(f"handler {spec!r}: {name!r} beside it is a {type(hook).__name__}, not a function")
    if inspect.iscoroutinefunction(hook) and not asynchronous:
        raise HandlerNotCallable(
            f"handler {spec!r}: {name!r} is asynchronous and the handler is not, so it has no event loop to run in; "
            "make both asynchronous, or neither"
        )
    return hook  # type: ignore[no-any-return]  # a user's attribute has no type; its signature is the contract
