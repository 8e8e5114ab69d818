"""Helpers for GitHub's Markdown: tables, escaped text and headings."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

NOT_CODE: Final = re.compile(r"(`[^`]*`)")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table. The cells must already be Markdown."""
    lines = (heads, ["---"] * len(heads), *rows)
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


def escaped(text: str) -> str:
    """Text for a table cell, on one line. Markdown's special characters outside of code are escaped."""
    parts = NOT_CODE.split(" ".join(text.split()))
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_\[\]])", r"\\\1", part).replace("<", "&lt;") for part in parts
    )


def code(text: str) -> str:
    return f"`{text}`"


def headings(page: str) -> dict[str, str]:
    """The headings of a page, keyed by anchor. The title also has the key ''."""
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    found = {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-"): title for title in titles}
    return {"": titles[0], **found}
