"""Packages of the gallery's examples and their tests that the project does not need, installed once into the cache."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Final

from e2e.local_cluster.cache import cache_entry, fleet_home
from e2e.local_cluster.commands import run

__all__ = ["GALLERY", "ensure_packages"]

GALLERY: Final = Path(__file__).resolve().parents[3] / "examples" / "gallery"
PINNED: Final = Path(__file__).with_name("requirements.txt")


def ensure_packages() -> Path:
    """The folder of the packages, for an import path.

    pip refuses an example whose requirements differ from the pinned versions.
    """
    wanted = sorted(GALLERY.glob("*/requirements.txt"))
    assert len(wanted) == 5, wanted
    content = b"".join(file.read_bytes() for file in (PINNED, *wanted))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(content).hexdigest()[:8]
    options = [word for file in (PINNED, *wanted) for word in ("--requirement", file)]

    def install(into: Path) -> None:
        run([sys.executable, "-m", "pip", "install", "--quiet", "--target", into, *options], reason="DownloadFailed")

    return cache_entry(
        fleet_home() / "gallery" / f"python{version}-{digest}", install, purpose="installing the gallery's packages"
    )
