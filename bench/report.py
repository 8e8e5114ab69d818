"""Metadata and files of recorded results: time, machine, code, load."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import confluent_kafka

from e2e.local_cluster.versions import KAFKA

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = Path(__file__).parent / "results"
ADDITIONS: Final = 20_000_000
HOT_PATH: Final = (
    "consumer/positions.py",
    "fetch/buffer.py",
    "fetch/thread.py",
    "librdkafka/fetched.py",
    "record.py",
    "worker/consume/inline.py",
)
"""The code that handles every record; a result is stale once one of these has changed, apart from comments."""


def code_digest(root: Path = ROOT) -> str:
    """A digest of the hot path's code; comments and docstrings do not count."""
    digest = hashlib.sha256()
    for name in HOT_PATH:
        tree = ast.parse((root / "consumer_image/fleet_consumer" / name).read_text())
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list):
                node.body = [each for each in body if not _is_words(each)]  # type: ignore[attr-defined]
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()[:16]


def _is_words(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def versions(*distributions: str) -> dict[str, str]:
    """Versions of the software measured; `distributions` are further Python packages."""
    return {
        "consumer-fleet": version("consumer-fleet"),
        "confluent-kafka": version("confluent-kafka"),
        "librdkafka": confluent_kafka.libversion()[0],
        **{name: version(name) for name in distributions},
        "python": platform.python_version(),
        "kafka": KAFKA,
    }


class Load:
    """The machine's load average before and after; it includes the benchmark itself."""

    def __init__(self) -> None:
        self._before = os.getloadavg()[0]

    def averages(self) -> dict[str, float]:
        """The load of the last minute, at the start and now."""
        return {"before": round(self._before, 2), "after": round(os.getloadavg()[0], 2)}


def additions() -> float:
    """Seconds of 20 million additions in a Python function, to compare machines."""

    def add() -> int:
        value = 0
        for number in range(ADDITIONS):
            value += number
        return value

    began = time.perf_counter()
    add()
    return time.perf_counter() - began


def recorded(
    name: str, figures: dict[str, Any], load: Load, *distributions: str, brokers: str = "one broker"
) -> dict[str, Any]:
    """The figures with the metadata needed to compare them."""
    return {
        "benchmark": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **figures,
        "code": code_digest(),
        "versions": versions(*distributions),
        "machine": f"{os.cpu_count()} cores, {brokers} on the same machine",
        "load": load.averages(),
    }


def write(result: dict[str, Any], page: Sequence[str], *, trial: bool = False) -> None:
    """Print the page and, unless `trial`, write it to bench/results, with the figures as JSON."""
    text = "\n".join([*page, "", *_footer(result), ""])
    print(text, flush=True)
    if not trial:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{result['benchmark']}.json").write_text(json.dumps(result, indent=2) + "\n")
        (RESULTS / f"{result['benchmark']}.md").write_text(text)


def _footer(result: dict[str, Any]) -> Iterator[str]:
    load = result["load"]
    software = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    averages = f"load {load['before']} before, {load['after']} after"
    yield f"{result['machine']}; {averages}; {result['date']}; {software}."
