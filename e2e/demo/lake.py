"""The Parquet side of the demo. It runs in a pod of the Spark image, which has pyarrow.

Like `inside.py`, it is one file without code of the project: the counter must share no code with what it counts. The
result is one JSON object on standard output.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet  # type: ignore[import-not-found,unused-ignore]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Every row of a folder of slices, or of a table, without files of uncommitted writes."""
    found: list[dict[str, Any]] = []
    for file in files_of(folder):
        found += pyarrow.parquet.ParquetFile(file).read().to_pylist()
    return found


def files_of(folder: Path) -> list[Path]:
    """The files in the log of a Delta Lake table; all files of an Iceberg table, whose log is not read; or the files of
    all slices."""
    log = sorted((folder / "_delta_log").glob("*.json"))
    if not log:
        return sorted([*folder.glob("slice=*/*.parquet"), *folder.glob("*/*/data/*.parquet")])
    named: set[str] = set()
    for entry in (json.loads(line) for file in log for line in file.read_text().splitlines()):
        named |= {entry["add"]["path"]} if "add" in entry else set()
        named -= {entry["remove"]["path"]} if "remove" in entry else set()
    return sorted(folder / name for name in named)


def count(folder: Path) -> dict[str, Any]:
    """Rows, distinct origins, and the sum of the digests of keys and values, which does not depend on the order."""
    rows = rows_of(folder)
    digests = (hashlib.sha256((row["key"] or b"") + b"\0" + row["value"]).digest()[:8] for row in rows)
    return {
        "rows": len(rows),
        "distinct": len({(row["partition"], row["offset"], row["output"]) for row in rows}),
        "checksum": sum(int.from_bytes(digest, "big") for digest in digests) % 2**64,
        "slices": len(list(folder.glob("slice=*"))),
        "files": len(files_of(folder)),
    }


def differences(folder: Path) -> dict[str, Any]:
    """The number of records with different results of two handlers, and the first of them."""
    rows = rows_of(folder / "differences")
    first = {name: _text(value) for name, value in rows[0].items()} if rows else {}
    return {"rows": len(rows), "distinct": len({(row["partition"], row["offset"]) for row in rows}), "first": first}


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def main() -> None:
    """Run the command; a folder that does not exist is one without rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("count", "differences"))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    print(json.dumps({"count": count, "differences": differences}[options.command](options.folder), default=str))


if __name__ == "__main__":
    main()
