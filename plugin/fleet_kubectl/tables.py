"""Formats text for terminals: tables of limited width, short numbers, safe strings. Pure."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Final

WIDTH: Final = 100
"""Width in characters of output that does not go to a terminal."""
GAP: Final = "  "
PLAIN_MAX: Final = 9_999
UNITS: Final = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
ABSENT: Final = "-"


def printable(text: str) -> str:
    """Make text safe for a terminal: line ends and tabs become spaces, other control characters become escape
    sequences."""
    if text.isprintable():
        return text
    flat = text.replace("\r\n", " ").replace("\n", " ").replace("\t", " ")
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in flat)


def printable_lines(text: str) -> str:
    """Make text of several lines safe for a terminal. Line ends and tabs are kept, and JSON keeps its meaning."""
    return "".join(each if each.isprintable() or each in "\n\t" else json.dumps(each)[1:-1] for each in text)


def compact(number: int | None) -> str:
    """Format a number in at most five characters, up to 999 T: 9999, 65.5k, 1.05M. None (unknown) becomes `-`."""
    if number is None:
        return ABSENT
    if number <= PLAIN_MAX:
        return str(number)
    size, unit = next(each for each in UNITS if number >= each[0])
    whole = number / size
    return f"{whole:.3g}{unit}" if whole < 999.5 else f"{whole:.0f}{unit}"


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int, flexible: Mapping[str, int], right: set[str]
) -> list[str]:
    """The lines of a table. If it is wider than `width`, the columns in `flexible` are shortened in this order, each
    down to its minimum; cut cells end with `…`."""
    widths = [max(len(row[at]) for row in (header, *rows)) for at in range(len(header))]
    over = sum(widths) + len(GAP) * (len(widths) - 1) - width
    for name, least in flexible.items():
        if over > 0 and name in header:
            at = header.index(name)
            less = min(over, max(0, widths[at] - max(least, len(name))))
            widths[at], over = widths[at] - less, over - less
    lines = []
    for row in (header, *rows):
        cells = (cut(cell, size) for cell, size in zip(row, widths, strict=True))
        aligned = (
            cell.rjust(size) if name in right else cell.ljust(size)
            for cell, size, name in zip(cells, widths, header, strict=True)
        )
        lines.append(GAP.join(aligned).rstrip())
    return lines


def wrapped(text: str, *, indent: str, first: str | None = None, width: int = WIDTH) -> list[str]:
    """Wrap a paragraph to lines of at most `width` characters. Words, such as names, are never broken."""
    return textwrap.wrap(
        printable(text),
        width,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
