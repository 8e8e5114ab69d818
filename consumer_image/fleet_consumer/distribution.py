"""Name and version of this distribution."""

from functools import cache
from importlib import metadata
from typing import Final

DISTRIBUTION: Final = "consumer-fleet"
"""The name by which brokers count this client software (KIP-511)."""

UNKNOWN_VERSION: Final = "unknown"
"""The version of code that runs without installed metadata, for example from a checkout or a zipped application."""


@cache
def own_version() -> str:
    """Return the installed version, or `UNKNOWN_VERSION`. Never raises, because nothing depends on the version."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return UNKNOWN_VERSION
