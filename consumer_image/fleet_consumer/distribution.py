"""Name and version of this distribution."""

from functools import cache
from importlib import metadata
from typing import Final

DISTRIBUTION: Final = "consumer-fleet"
"""Client software name in the brokers' metrics (KIP-511)."""

UNKNOWN_VERSION: Final = "unknown"
"""The version of code that runs without installed metadata, for example from a checkout or a zipped application."""


@cache
def own_version() -> str:
    """Return the installed version, or `UNKNOWN_VERSION`. Never raises, because nothing depends on the version."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return UNKNOWN_VERSION
