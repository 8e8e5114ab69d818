"""Files that a folder of tests depends on, found by following its imports.

Modules of the tests and of the operator are followed. The worker's package is not, because tests run it in processes:
such a suite has the whole package among its inputs. A module that tests run with ``python -m`` is found by the string
that names it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["files_behind"]

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = {"tests": ROOT, "e2e": ROOT, "fleet_operator": ROOT / "operator"}
"""The packages whose modules are followed, and the folders that they are in."""
MODULE: Final = re.compile(r"(?:tests|e2e)(?:\.\w+)+")
DATA: Final = ("tests/support", "tests/broker", "e2e/local_cluster")
"""Folders of helpers whose other files are read: programs in Java, pinned versions, manifests."""
CODE: Final = ".py"
CACHE: Final = "__pycache__"


def files_behind(*folders: Path) -> tuple[Path, ...]:
    """All files of folders, all modules that they import, directly or not, and other files next to these modules:
    programs in Java, pinned versions, manifests."""
    every = (each for folder in folders for each in folder.rglob("*"))
    found = {each for each in every if each.is_file() and CACHE not in each.parts}
    waiting = [each for each in found if each.suffix == CODE]
    while waiting:
        for module in _imported(waiting.pop()):
            if module not in found:
                found.add(module)
                waiting.append(module)
    data = {each for folder in {module.parent for module in found} for each in _data_in(folder)}
    return tuple(sorted(found | data))


@cache
def _imported(file: Path) -> tuple[Path, ...]:
    return tuple(_followed(file))


def _followed(file: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from _files(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from _files((node.module, *(f"{node.module}.{name.name}" for name in node.names)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE.fullmatch(node.value):
            yield from _files((node.value,))


def _files(modules: Iterable[str]) -> Iterator[Path]:
    """The files of modules and of their packages; names that are not modules of ours give none."""
    for module in modules:
        words = module.split(".")
        if words[0] in SOURCES:
            parents = (SOURCES[words[0]].joinpath(*words[:count]) for count in range(1, len(words) + 1))
            for place in parents:
                yield from (each for each in (place / "__init__.py", place.with_suffix(CODE)) if each.is_file())


@cache
def _data_in(folder: Path) -> frozenset[Path]:
    """The files other than Python in a folder of helpers, and in its subfolders without any Python."""
    if not any(folder.is_relative_to(ROOT / place) for place in DATA):
        return frozenset()
    found = {each for each in folder.iterdir() if each.is_file()}
    for each in folder.iterdir():
        if each.is_dir() and each.name != CACHE and not any(each.rglob(f"*{CODE}")):
            found.update(file for file in each.rglob("*") if file.is_file())
    return frozenset(each for each in found if each.suffix not in (CODE, ".md"))
