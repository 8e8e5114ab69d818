"""Strict parsing of JSON objects: fields are read by name and type, and unknown fields are errors."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from fleet_consumer.contract.patterns import Pattern, PatternRefused, compile_pattern


class SettingsInvalid(Exception):
    """An unusable setting. `field` is its path in the file, `problem` the reason."""

    reason = "SettingsInvalid"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field = field
        self.problem = problem


class PatternInvalid(SettingsInvalid):
    """RE2 refuses a setting that must be a regular expression."""


_ABSENT: Final = object()
_T = TypeVar("_T")


class Section:
    """A JSON object. Each field is read once and removed; `end` raises an error if fields remain."""

    def __init__(self, value: object, path: str) -> None:
        self.path = path
        if not isinstance(value, dict):
            raise SettingsInvalid(path or "worker.json", f"must be an object, not {_json_kind(value)}")
        self._remaining: dict[str, Any] = dict(value)

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def pop(self, name: str) -> Any:
        """Remove and return the field's value, which may be null. Raises SettingsInvalid if the field is absent."""
        value = self._remaining.pop(name, _ABSENT)
        if value is _ABSENT:
            raise SettingsInvalid(self.at(name), "is missing")
        return value

    def has(self, name: str) -> bool:
        """Return True if the field is present. For fields that earlier versions do not write."""
        return name in self._remaining

    def end(self) -> None:
        """Raise SettingsInvalid if any field was not read."""
        if self._remaining:
            raise SettingsInvalid(self.at(min(self._remaining)), "is not a setting that this version knows")

    def only(self, *names: str) -> str:
        """Return the one field of `names` that is present. Raises SettingsInvalid if none or several are present."""
        found = [name for name in names if name in self._remaining]
        if len(found) != 1:
            raise SettingsInvalid(self.path, f"must have exactly one of {', '.join(names)}")
        return found[0]

    def nested(self, name: str, parse: "Callable[[Section], _T]") -> _T:
        """Read a field that is an object, and parse the object; `parse` must read all fields of the object."""
        return whole(self.pop(name), self.at(name), parse)

    def text(self, name: str, *, pattern: str | None = None) -> str:
        value = self.pop(name)
        if not isinstance(value, str) or not value:
            raise SettingsInvalid(self.at(name), f"must be a non-empty string, not {_json_kind(value)}")
        if pattern is not None and re.fullmatch(pattern, value) is None:
            raise SettingsInvalid(self.at(name), f"is {value!r}, which does not match {pattern}")
        return value

    def optional_integer(self, name: str, least: int, most: int | None = None) -> int | None:
        return None if self.take_null(name) else self.integer(name, least, most)

    def pattern(self, name: str) -> Pattern:
        return parse_pattern(self.text(name), self.at(name))

    def strings(self, name: str, *, least: int = 0) -> tuple[str, ...]:
        value = self.pop(name)
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise SettingsInvalid(self.at(name), "must be a list of non-empty strings")
        if len(value) < least:
            raise SettingsInvalid(self.at(name), f"must have at least {least} entry")
        return tuple(value)

    def integer(self, name: str, least: int, most: int | None = None) -> int:
        value = self.pop(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise SettingsInvalid(self.at(name), f"must be a whole number, not {_json_kind(value)}")
        if value < least or (most is not None and value > most):
            bounds = f"at least {least}" if most is None else f"{least} to {most}"
            raise SettingsInvalid(self.at(name), f"must be {bounds}, not {value}")
        return value

    def boolean(self, name: str) -> bool:
        value = self.pop(name)
        if not isinstance(value, bool):
            raise SettingsInvalid(self.at(name), f"must be true or false, not {_json_kind(value)}")
        return value

    def choice(self, name: str, *allowed: str) -> str:
        value = self.pop(name)
        if value not in allowed:
            raise SettingsInvalid(self.at(name), f"is {value!r}; allowed are {', '.join(allowed)}")
        return str(value)

    def properties(self, name: str) -> Mapping[str, str]:
        value = self.pop(name)
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise SettingsInvalid(self.at(name), "must map names of librdkafka settings to strings")
        return MappingProxyType(dict(value))

    def take_null(self, name: str) -> bool:
        """Remove the field if its value is null. Returns True if removed."""
        null = self._remaining.get(name, _ABSENT) is None
        if null:
            del self._remaining[name]
        return null


def whole(value: object, path: str, parse: Callable[[Section], _T]) -> _T:
    """Parse an object; `parse` must read all fields of the object."""
    section = Section(value, path)
    parsed = parse(section)
    section.end()
    return parsed


def manifest_section(value: object, path: str, **defaults: object) -> Section:
    """Return a manifest's section. As in the API server, a null field counts as absent, so its default applies."""
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise SettingsInvalid(path, f"has the field {name!r}, whose name is not a string: write it in quotes")
        value = {**defaults, **{name: each for name, each in value.items() if each is not None}}
    elif value is None:
        raise SettingsInvalid(path, "is missing")
    return Section(value, path)


def load_json(path: str) -> Any:
    """Load a JSON file. Raises SettingsInvalid."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsInvalid("", f"cannot read {path}: {error}") from error
    try:
        return json.loads(text)
    except ValueError as error:
        raise SettingsInvalid("", f"{path} is not JSON: {error}") from error


def parse_pattern(text: str, path: str) -> Pattern:
    """Compile a regular expression. Raises PatternInvalid."""
    try:
        return compile_pattern(text)
    except PatternRefused as refused:
        raise PatternInvalid(path, str(refused)) from refused


def _json_kind(value: object) -> str:
    if value is None:
        return "null"
    if value == "":
        return "an empty string"
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list"}
    return kinds.get(type(value), "an object")
