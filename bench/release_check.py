"""Check before a release that recorded benchmark results are of this version and this code.

`make release-check` runs it. It is not a test, because each change of the hot path would then need new benchmarks.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

from bench import report
from bench.__main__ import USUAL


def stale_results(results: Path, wanted_version: str, code: str) -> list[str]:
    """A line for each usual benchmark whose recorded result is missing, or of another version or code."""
    found = []
    for name in (each.replace("-", "_") for each in USUAL):
        page = results / f"{name}.json"
        if not page.exists() or not page.with_suffix(".md").exists():
            found.append(f"{name}: no result is recorded")
            continue
        result = json.loads(page.read_text())
        of_version = result["versions"]["consumer-fleet"]
        if of_version != wanted_version:
            found.append(f"{name}: recorded with version {of_version}, this is {wanted_version}")
        elif result["code"] != code:
            found.append(f"{name}: the code that it measured has changed since")
    return found


def main() -> int:
    """Print stale results; returns 1 if there are any."""
    stale = stale_results(report.RESULTS, version("consumer-fleet"), report.code_digest())
    for line in stale:
        print(f"{line}; record it again with `make bench`")
    if not stale:
        print("recorded results are of this version and this code")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
