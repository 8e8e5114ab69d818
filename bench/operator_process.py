"""The measured operator process: CPU, memory, and its own metrics."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.waiting import eventually

TICKS: Final = os.sysconf("SC_CLK_TCK")
START_S: Final = 600.0
SERIES: Final = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
PREFIX: Final = "consumer_fleet_operator_"


@dataclass(frozen=True, slots=True)
class Sample:
    """CPU and memory of the process at one time (monotonic seconds)."""

    at: float
    cpu_s: float
    rss_mib: float
    peak_mib: float


class OperatorProcess:
    """`fleet-operator run` on an API server; a context manager. Its log goes to a file that is printed on failure."""

    def __init__(self, kubeconfig: Path, *arguments: str) -> None:
        self.log = Path(tempfile.mkstemp(prefix="fleet-operator-", suffix=".log")[1])
        program = str(Path(sys.executable).parent / "fleet-operator")
        command = [program, "run", "--log-format", "text", "--health-port", "0", "--metrics-port", "0", *arguments]
        command += ["--leader-elect", "--lease-namespace", "default"]
        self.started_at = time.monotonic()
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                stderr=log,
                env={**os.environ, "KUBECONFIG": str(kubeconfig), "POD_NAME": f"bench-{os.getpid()}"},
            )

    def wait_working(self) -> float:
        """Wait until its caches are full and it works; returns the seconds since its start."""
        eventually(self._is_working, timeout_s=START_S, what="the operator to work", poll_s=0.2)
        return time.monotonic() - self.started_at

    def _is_working(self) -> bool:
        assert self.process.poll() is None, f"the operator ended: {self.log.read_text()[-2000:]}"
        return " working" in self.log.read_text()

    def sample(self) -> Sample:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        rss, peak = (int(status.partition(f"{name}:")[2].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
        return Sample(time.monotonic(), (int(fields[11]) + int(fields[12])) / TICKS, rss, peak)

    def metrics(self) -> dict[str, float]:
        """Metric values by name and labels, as in the Prometheus text format."""
        (port,) = re.findall(r"metrics_port=(\d+)", self.log.read_text())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        return {f"{name}{{{labels}}}": float(value) for name, labels, value in SERIES.findall(text)}

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def __enter__(self) -> OperatorProcess:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        if error[0] is not None:
            print(f"--- {self.log}\n{self.log.read_text()[-4000:]}", file=sys.stderr)


def total(series: Mapping[str, float], name: str, **labels: str) -> float:
    """The sum of a counter over all series with these labels."""
    wanted = f"{PREFIX}{name}_total{{"
    return sum(
        value
        for key, value in series.items()
        if key.startswith(wanted) and labels.items() <= dict(LABEL.findall(key)).items()
    )


def writes(series: Mapping[str, float]) -> float:
    """Writes to the API server, without those of the Lease."""
    verbs = ("POST", "PUT", "PATCH", "DELETE")
    return sum(
        total(series, "api_requests", verb=verb) - total(series, "api_requests", verb=verb, resource="leases")
        for verb in verbs
    )


def quantile(before: Mapping[str, float], after: Mapping[str, float], name: str, share: float) -> float:
    """Upper bound (bucket edge) of a quantile of a histogram between two scrapes; NaN without observations."""
    wanted = f"{PREFIX}{name}_bucket{{"
    counts: dict[float, float] = {}
    for key, value in after.items():
        if key.startswith(wanted):
            edge = float(dict(LABEL.findall(key))["le"].replace("+Inf", "inf"))
            counts[edge] = counts.get(edge, 0.0) + value - before.get(key, 0.0)
    if not counts or not counts[float("inf")]:
        return float("nan")
    return min(edge for edge, count in counts.items() if count >= share * counts[float("inf")])
