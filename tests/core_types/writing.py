"""Generated parts of a CRD's text. A comment says where one begins; it ends with the object that holds it.

    httpGet:
      description: As in a pod.
      # Kubernetes: Probe without httpGet.host, tcpSocket.host

What stands before the comment in the same object is written by hand, and wins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.core_types.schema import structural

__all__ = ["CRDS", "generated"]

CRDS: Final = Path(__file__).resolve().parents[2] / "crds"
MARK: Final = re.compile(r"(?P<indent> *)# Kubernetes: (?P<place>[\w.]+)(?: without (?P<without>[\w., ]+))?")
WIDTH: Final = 120


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, _data: Any) -> bool:
        return True


def generated(text: str, schemas: Mapping[str, Any]) -> str:
    """The text of a CRD with its generated parts made from `schemas`."""
    lines: list[str] = []
    skipped_below = 0
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        if line.strip() and depth < skipped_below:
            skipped_below = 0
        if skipped_below:
            continue
        lines.append(line)
        if mark := MARK.fullmatch(line):
            skipped_below = depth
            by_hand = _keys_before(lines[:-1], depth)
            lines += _part(mark, schemas, by_hand)
    return "\n".join(lines) + "\n"


def _part(mark: re.Match[str], schemas: Mapping[str, Any], by_hand: frozenset[str]) -> list[str]:
    without = frozenset(filter(None, re.split(r", *", mark["without"] or "")))
    schema = structural(schemas, mark["place"], without)
    rest = {key: value for key, value in schema.items() if key not in by_hand}
    dumped = yaml.dump(
        rest, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=WIDTH - len(mark["indent"])
    )
    return [mark["indent"] + line for line in dumped.splitlines()]


def _keys_before(lines: list[str], depth: int) -> frozenset[str]:
    """Keys of the object that the last line belongs to, whose fields are indented by `depth`."""
    found = set()
    for line in reversed(lines):
        indent = len(line) - len(line.lstrip(" "))
        if line.strip() and indent < depth:
            break
        if indent == depth and (key := re.match(r"([\w-]+):", line.strip())):
            found.add(key[1])
    return frozenset(found)
