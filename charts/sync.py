"""Copies the version of `pyproject.toml` into the chart. A test fails when they differ."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CHART: Final = ROOT / "charts" / "consumer-fleet"
VERSIONED: Final = {
    CHART / "Chart.yaml": r'(?m)^((?:version|appVersion): "?)[^"\n]+',
    CHART / "values.yaml": r"(?m)^( *image: consumer-fleet-(?:operator|consumer|spark):)\S+",
}
"""Files that repeat the version, and the text before it."""


def versioned() -> dict[Path, str]:
    """Every file of the chart that repeats the version of the distribution, as it must be."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return {
        path: re.sub(pattern, rf"\g<1>{version}", path.read_text(encoding="utf-8"))
        for path, pattern in VERSIONED.items()
    }


def main() -> None:
    """Write the files with their versions."""
    for path, text in versioned().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
