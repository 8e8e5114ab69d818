"""A headless Chromium, and axe-core, which checks contrast, names and roles. Both are installed if missing."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Final

from e2e.local_cluster.cache import cache_entry, fleet_home
from e2e.local_cluster.commands import stream
from e2e.local_cluster.packages import Requirement, ensure_programs_installed

FOLDER: Final = Path(__file__).parent
CHROMIUM: Final = Requirement("chromium-headless-shell", "chromium-headless-shell")
NPM: Final = Requirement("npm", "npm")


def ensure_chromium() -> str:
    """The path of Chromium. Raises ClusterError if it cannot be installed."""
    ensure_programs_installed([CHROMIUM])
    found = shutil.which(CHROMIUM.program)
    assert found, "it was just installed"
    return found


def ensure_axe() -> str:
    """The source of axe-core, from the npm registry; npm checks the digest in package-lock.json."""
    ensure_programs_installed([NPM])
    lock = FOLDER / "package-lock.json"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]

    def install(folder: Path) -> None:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(FOLDER / name, folder)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder)]
        stream(command, log=fleet_home() / "logs" / "axe.log", on_line=lambda line: None, reason="DownloadFailed")

    made = cache_entry(fleet_home() / "axe" / digest, install, purpose="downloading axe-core")
    return (made / "node_modules" / "axe-core" / "axe.min.js").read_text()
