"""The words that the code can show as a type, reason, phase or state, found by reading the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.unit.test_house_rules import ROOT, syntax

CODE: Final = (ROOT / "operator/fleet_operator", ROOT / "consumer_image/fleet_consumer")
WORD: Final = re.compile(r"[A-Z][A-Za-z]*[a-z][A-Za-z]*")
REASON: Final = "reason"

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Places = Mapping[str, frozenset[int]]
"""Positions of the parameter `reason`, keyed by the name of the function or class."""


def modules() -> list[Path]:
    return sorted(path for folder in CODE for path in folder.rglob("*.py"))


def constants(path: Path) -> set[str]:
    """The CamelCase values of a module's constants."""
    found: set[str] = set()
    for node in syntax(path).body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            found |= _words(node.value)
    return found


def strings(paths: Iterable[Path]) -> set[str]:
    """Every CamelCase string in the code."""
    return {word for path in paths for node in ast.walk(syntax(path)) for word in _words(node)}


def reasons(paths: Iterable[Path]) -> set[str]:
    """Every CamelCase string that is passed or assigned as a `reason`, and the names of classes that are reasons."""
    trees = [syntax(path) for path in paths]
    places = _places(trees)
    return {
        word for tree in trees for node in ast.walk(tree) for value in _values(node, places) for word in _words(value)
    }


def _words(node: ast.AST) -> set[str]:
    """The words of a string, and of the strings between which an expression chooses."""
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, str) and WORD.fullmatch(node.value) else set()
    if isinstance(node, ast.IfExp):
        return _words(node.body) | _words(node.orelse)
    if isinstance(node, ast.BoolOp):
        return {word for value in node.values for word in _words(value)}
    return set()


def _places(trees: Iterable[ast.Module]) -> Places:
    found: dict[str, set[int]] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, Definition) and (names := _parameters(node)) and REASON in names:
                found.setdefault(node.name, set()).add(names.index(REASON))
    return {name: frozenset(places) for name, places in found.items()}


def _parameters(node: Definition) -> list[str]:
    """The parameters of a function without `self`, or of a class's `__init__`, or the fields of a dataclass."""
    if isinstance(node, ast.ClassDef):
        made = next((each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)
        fields = (each.target for each in node.body if isinstance(each, ast.AnnAssign))
        return _parameters(made) if made is not None else [each.id for each in fields if isinstance(each, ast.Name)]
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _values(node: ast.AST, places: Places) -> Iterator[ast.expr]:
    """The expressions that a node passes or assigns as a reason."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=positional, keywords=named):
            yield from (positional[place] for place in places.get(name, ()) if place < len(positional))
            yield from (each.value for each in named if each.arg == REASON)
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            for target, value in zip(targets, values, strict=False):
                if isinstance(target, ast.Name) and target.id == REASON:
                    yield value
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == REASON:
            yield value
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if name == REASON:
            yield value
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and key.value == REASON:
                    yield value
        case ast.arguments(args=args, defaults=defaults):
            for argument, value in zip(args[len(args) - len(defaults) :], defaults, strict=True):
                if argument.arg == REASON:
                    yield value
