"""Name and version of this distribution."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import Final

DISTRIBUTION: Final = "consumer-fleet"
"""The name by which brokers count this client software (KIP-511)."""

UNKNOWN_VERSION: Final = "unknown"
"""The version of code that runs without installed metadata: a checkout on the path, a zipped application."""


@cache
def own_version() -> str:
    """The installed version, `UNKNOWN_VERSION` where nothing is installed; never an error, as nothing depends on it."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return UNKNOWN_VERSION
