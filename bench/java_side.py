"""Java's perf tool as a side of the throughput benchmark: a new JVM per run, with all of its compilers."""

from __future__ import annotations

import os
import subprocess
import tempfile
import uuid
from typing import Final

from e2e.local_cluster.jars import ensure_kafka_jars
from e2e.local_cluster.kafka_node import find_java, java_command

TOOL: Final = "org.apache.kafka.tools.ConsumerPerformance"
HEAP: Final = "512m"
TIMEOUT_MS: Final = 60_000


def java(bootstrap: str, topic: str, wanted: int) -> dict[str, float]:
    """Records per second of its fetch time, which excludes joining as in our sides, and the tool's own rate including
    joining. CPU and memory are of the whole JVM."""
    arguments = (
        *("--bootstrap-server", bootstrap, "--topic", topic, "--group", f"bench-{uuid.uuid4().hex}"),
        *("--num-records", str(wanted), "--timeout", str(TIMEOUT_MS)),
    )
    options = [f"-Xmx{HEAP}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    command = java_command(find_java(), ensure_kafka_jars(), TOOL, *arguments, options=options)
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        printed = out.read()
    if process.returncode:
        raise SystemExit(f"{TOOL} ended with {process.returncode}: {printed}")
    row = figures(printed)
    records = row["data.consumed.in.nMsg"]
    return {
        "per_second": records / (row["fetch.time.ms"] / 1000),
        "cpu_per_million": (usage.ru_utime + usage.ru_stime) / records * 1_000_000,
        "peak_mib": usage.ru_maxrss / 1024,
        "told_per_second": row["nMsg.sec"],
    }


def figures(printed: str) -> dict[str, float]:
    """The tool's row of figures by header name, without times of day."""
    lines = [line for line in printed.splitlines() if line.count(",") >= 5]
    if len(lines) != 2:
        raise SystemExit(f"{TOOL} printed no header and row: {printed!r}")
    names, values = ([cell.strip() for cell in line.split(",")] for line in lines)
    return {name: float(value) for name, value in zip(names, values, strict=True) if not name.endswith(".time")}
