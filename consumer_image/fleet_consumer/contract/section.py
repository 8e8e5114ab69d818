"""Strict reading of JSON objects: fields are taken by name and type, and none may be left."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from fleet_consumer.contract.patterns import Pattern, PatternRefused, compile_pattern


class SettingsInvalid(Exception):
    """A setting cannot be used; `field` is its path in worker.json, and the message says what to change."""

    reason = "SettingsInvalid"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field = field


_ABSENT: Final = object()


class Section:
    """One JSON object on its way in: fields are taken by name and type, and at the end none may be left."""

    def __init__(self, value: object, path: str) -> None:
        self.path = path
        if not isinstance(value, dict):
            raise SettingsInvalid(path or "worker.json", f"must be an object, not {_json_kind(value)}")
        self._left: dict[str, Any] = dict(value)

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def take(self, name: str) -> Any:
        """The field's value; a field that is absent is an error, null is a value."""
        value = self._left.pop(name, _ABSENT)
        if value is _ABSENT:
            raise SettingsInvalid(self.at(name), "is missing")
        return value

    def has(self, name: str) -> bool:
        """Whether the field is there; asked of fields that an earlier version does not write."""
        return name in self._left

    def end(self) -> None:
        if self._left:
            raise SettingsInvalid(self.at(min(self._left)), "is not a setting that this version knows")

    def only(self, *names: str) -> str:
        """The one of these fields that is there; one of them must be, and no second one."""
        found = [name for name in names if name in self._left]
        if len(found) != 1:
            raise SettingsInvalid(self.path, f"must have exactly one of {', '.join(names)}")
        return found[0]

    def section(self, name: str) -> Section:
        return Section(self.take(name), self.at(name))

    def optional_section(self, name: str) -> Section | None:
        value = self.take(name)
        return None if value is None else Section(value, self.at(name))

    def text(self, name: str, *, pattern: str | None = None) -> str:
        value = self.take(name)
        if not isinstance(value, str) or not value:
            raise SettingsInvalid(self.at(name), f"must be a non-empty string, not {_json_kind(value)}")
        if pattern is not None and re.fullmatch(pattern, value) is None:
            raise SettingsInvalid(self.at(name), f"is {value!r}, which does not match {pattern}")
        return value

    def optional_text(self, name: str) -> str | None:
        if self._left.get(name, _ABSENT) is None:
            del self._left[name]
            return None
        return self.text(name)

    def optional_integer(self, name: str, least: int, most: int | None = None) -> int | None:
        if self._left.get(name, _ABSENT) is None:
            del self._left[name]
            return None
        return self.integer(name, least, most)

    def pattern(self, name: str) -> Pattern:
        text = self.text(name)
        try:
            return compile_pattern(text)
        except PatternRefused as refused:
            raise SettingsInvalid(self.at(name), str(refused)) from refused

    def optional_pattern(self, name: str) -> Pattern | None:
        if self._left.get(name, _ABSENT) is None:
            del self._left[name]
            return None
        return self.pattern(name)

    def texts(self, name: str, *, least: int = 0) -> tuple[str, ...]:
        value = self.take(name)
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise SettingsInvalid(self.at(name), "must be a list of non-empty strings")
        if len(value) < least:
            raise SettingsInvalid(self.at(name), f"must have at least {least} entry")
        return tuple(value)

    def integer(self, name: str, least: int, most: int | None = None) -> int:
        value = self.take(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise SettingsInvalid(self.at(name), f"must be a whole number, not {_json_kind(value)}")
        if value < least or (most is not None and value > most):
            bounds = f"at least {least}" if most is None else f"{least} to {most}"
            raise SettingsInvalid(self.at(name), f"must be {bounds}, not {value}")
        return value

    def boolean(self, name: str) -> bool:
        value = self.take(name)
        if not isinstance(value, bool):
            raise SettingsInvalid(self.at(name), f"must be true or false, not {_json_kind(value)}")
        return value

    def choice(self, name: str, *allowed: str) -> str:
        value = self.take(name)
        if value not in allowed:
            raise SettingsInvalid(self.at(name), f"is {value!r}; allowed are {', '.join(allowed)}")
        return str(value)

    def properties(self, name: str) -> Mapping[str, str]:
        value = self.take(name)
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise SettingsInvalid(self.at(name), "must map names of librdkafka settings to strings")
        return MappingProxyType(dict(value))


def _json_kind(value: object) -> str:
    if value is None:
        return "null"
    if value == "":
        return "an empty string"
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list"}
    return kinds.get(type(value), "an object")
