"""The commands and outputs of docs/kubectl-fleet.md."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/kubectl-fleet.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"^<!-- output: (\w+) -->\n```\n\$ kubectl fleet ([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IN_PODS = ("failed", "logs")
"""Commands that need a kubelet."""


def commands(*, in_pods: bool) -> list[list[str]]:
    """The words after `kubectl fleet` of each command in the page's console blocks."""
    lines = [line for block in BLOCK.findall(PAGE.read_text()) for line in block.splitlines()]
    found = [shlex.split(line)[2:] for line in lines if line.startswith("kubectl fleet ")]
    return [words for words in found if (words[0] in IN_PODS) is in_pods]


def outputs() -> dict[str, tuple[list[str], str]]:
    """The commands whose output the page shows, with this output, by their names."""
    return {name: (shlex.split(line), text) for name, line, text in OUTPUT.findall(PAGE.read_text())}
