"""Explanations of the words that statuses show: types and reasons of conditions, phases, limits of scaling.

The explanations are in the data file `explanations.toml`, in groups, sorted by urgency. The page docs/conditions.md is
generated from this file, and `kubectl fleet explain` and the console show the explanations. A test checks that every
word of the code has an explanation, and that every explained word is in the code.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of one word.

    - `meaning`: one to three sentences.
    - `command`: the first command to run.
    - `page`: the section with the details, as a link relative to docs/, such as `retries.md#budget`.
    """

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
"""All explanations, keyed by group, in the order of the file."""
EXPLANATIONS: Final[Mapping[str, Explanation]] = MappingProxyType(
    {explanation.word: explanation for explanations in GROUPS.values() for explanation in explanations}
)
"""All explanations, keyed by word."""
