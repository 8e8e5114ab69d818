"""Prometheus and Alertmanager with their command-line tools, built from pinned Go modules.

Decision: docs/decisions/0062-monitoring-in-tests.md.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from unittest.mock import patch

from e2e.local_cluster.gomodules import GoPrograms, ensure_programs

__all__ = ["ALERTMANAGER", "PROMETHEUS", "ensure_monitoring"]

MODULES: Final = Path(__file__).parent / "modules"


def _programs(name: str, *tools: str) -> GoPrograms:
    """Programs of the project `name`, in the version that its go.mod pins."""
    folder, module = MODULES / name, f"github.com/prometheus/{name}"
    (version,) = re.findall(rf"^(?:\t|require ){module} v(\S+)$", (folder / "go.mod").read_text(), re.MULTILINE)
    return GoPrograms(name, version, {tool: f"{module}/cmd/{tool}" for tool in (name, *tools)}, folder=folder)


PROMETHEUS: Final = _programs("prometheus", "promtool")
ALERTMANAGER: Final = _programs("alertmanager", "amtool")


def ensure_monitoring(wanted: GoPrograms) -> Path:
    """Return the folder with the programs of a project, building them if this version is not in the cache yet.

    Prometheus is built without its discovery of services in clouds, which takes half of the compiler's work.
    Raises ClusterError (``MissingPrograms``, ``DownloadFailed``, ``BuildFailed``).
    """
    flags = f"{os.environ.get('GOFLAGS', '')} -tags=remove_all_sd".strip()
    with patch.dict(os.environ, {"GOFLAGS": flags}):
        return ensure_programs(wanted)
