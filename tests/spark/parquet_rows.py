"""Prints the rows of all Parquet files below a folder as JSON lines; runs in the environment that has pyarrow."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow.parquet


def text(value: object) -> str:
    """The value of a column that JSON does not have."""
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def main(folder: str) -> None:
    """Print in the order of slices and files; a folder that is still being written has no finished files."""
    files = sorted(path for path in Path(folder).rglob("*.parquet") if "_temporary" not in path.parts)
    for path in files:
        for row in pyarrow.parquet.ParquetFile(path).read().to_pylist():
            print(json.dumps({"slice": path.parent.name, **row}, default=text))


if __name__ == "__main__":
    main(sys.argv[1])
