"""Explanations of the words that statuses show: types and reasons of conditions, phases, limits of scaling.

They are data (`explanations.toml`), in groups, each in the order in which a person should read it. The page
docs/conditions.md is generated from them, and `kubectl fleet explain` and the console show them. A test compares the
words with the code, in both directions.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Explanation:
    """One word: `meaning` in one or two sentences, the first command to run, and the place in docs/ with the details
    (a link relative to that folder, such as `retries.md#budget`)."""

    word: str
    meaning: str
    command: str
    page: str


def _load() -> dict[str, tuple[Explanation, ...]]:
    text = files(__package__).joinpath("explanations.toml").read_text(encoding="utf-8")
    return {
        group: tuple(Explanation(word, **fields) for word, fields in words.items())
        for group, words in tomllib.loads(text).items()
    }


GROUPS: Final[Mapping[str, tuple[Explanation, ...]]] = MappingProxyType(_load())
"""All explanations by group, in the order of the file."""
EXPLANATIONS: Final[Mapping[str, Explanation]] = MappingProxyType(
    {explanation.word: explanation for explanations in GROUPS.values() for explanation in explanations}
)
"""The explanation of each word."""
