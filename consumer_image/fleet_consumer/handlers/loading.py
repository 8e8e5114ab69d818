"""Import of an application's handler; errors name the cause and, if known, file and line.

`module:callable` is imported from the image, or from a folder that is put first on the import path. The import runs the
application's code, so only pods of the group import handlers.
"""

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
    """The handler's module cannot be imported. The message names the cause and, if known, file and line."""

    reason = "HandlerImportFailed"


class HandlerNotCallable(Exception):
    """The module was imported, but it lacks the name, or the name is not callable with one argument."""

    reason = "HandlerNotCallable"


@dataclass(frozen=True, slots=True)
class HandlerContext:
    """The fleet and the worker, for `setup` and `teardown`.

    `purpose` tells a handler why it runs, so that it can skip side effects. It is `live` in workers, `backfill` in a
    Backfill, `compare` in a comparison of two handlers, and `dryRun` in a dry run with sample records.
    """

    namespace: str
    name: str
    group_id: str
    revision: str
    worker: str
    purpose: str = "live"


def _nothing(context: HandlerContext) -> None:
    """Default of `setup` and `teardown`; does nothing."""


@dataclass(frozen=True, slots=True)
class Handler:
    """An imported handler. The hooks `setup` and `teardown` run once in each worker.

    `call` gets one record, or a list of records if `batch`. If `asynchronous`, `call` returns a coroutine, and the
    hooks may return one. `times_itself` is True if the handler enforces its own timeout. If `takes_bytes`, the handler
    gets undecoded bytes, and decoding only validates them. `last_error` returns the error that currently prevents
    calls, or None.
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
    """Import the handler `spec` ("package.module:callable"); modules in the folder `path` take precedence.

    A callable named `handle_batch` gets lists of records; a coroutine function is asynchronous. Raises
    HandlerImportFailed or HandlerNotCallable. Load only one handler per process, because modules stay imported.
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
    """Put the application's source folder first on the import path. Idempotent. Call it before any application code is
    imported, including custom assignors."""
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
    except BaseException as error:  # a module's top level may raise any exception, including SystemExit
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
    """True for a coroutine function. Raises HandlerNotCallable if `target` does not accept one argument."""
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
        return False  # some C callables have no signature; their first call raises
    return inspect.iscoroutinefunction(code)


def _hook(spec: str, module: ModuleType, name: str, asynchronous: bool) -> Callable[[HandlerContext], Any]:
    hook = getattr(module, name, None)
    if hook is None:
        return _nothing
    if not callable(hook):
        raise HandlerNotCallable(
            f"handler {spec!r}: {name!r} in the same module is a {type(hook).__name__}, not a function"
        )
    if inspect.iscoroutinefunction(hook) and not asynchronous:
        raise HandlerNotCallable(
            f"handler {spec!r}: {name!r} is asynchronous and the handler is not, so it has no event loop to run in; "
            "make both asynchronous, or neither"
        )
    return hook  # type: ignore[no-any-return]  # a user's attribute has no type
