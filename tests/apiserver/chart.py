"""Helm, and the objects that it renders the chart to; no server is asked."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from e2e.install import CHART
from e2e.local_cluster.gomodules import HELM, ensure_programs

Object = dict[str, Any]


def helm(*arguments: str) -> str:
    done = subprocess.run(
        [str(ensure_programs(HELM) / "helm"), *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        raise ValueError(done.stderr)
    return done.stdout


def rendered(*values: str, chart: Path = CHART) -> list[Object]:
    """Every object of a release, with some values set."""
    sets = [word for value in values for word in ("--set", value)]
    text = helm("template", "consumer-fleet", str(chart), "--namespace", "fleet-system", *sets)
    return [each for each in yaml.safe_load_all(text) if each]


def deployed(*values: str) -> Object:
    """The operator's pod template."""
    (deployment,) = of_kind(rendered(*values), "Deployment").values()
    found: Object = deployment["spec"]["template"]
    return found


def of_kind(found: list[Object], kind: str) -> dict[str, Object]:
    return {each["metadata"]["name"]: each for each in found if each["kind"] == kind}
