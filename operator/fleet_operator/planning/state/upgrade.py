"""The upgrade part of a group's state: what its workers took over from outside of its spec, and how far that is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import StringConstraints

ImageSource = Literal["Spec", "Operator"]
Image = Annotated[str, StringConstraints(max_length=1024, pattern=r"^[A-Za-z0-9\[][A-Za-z0-9._:/@+\[\]-]*$")]
"""A reference to an image, by the characters that it may have."""


class Phase(StrEnum):
    ROLLING = "Rolling"
    COMPLETE = "Complete"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The last upgrade of a group: the image and the digest of the connection that it brought, None for neither."""

    phase: Phase
    image: str | None = None
    connection: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeState:
    """The workers' image, the connection that was planned with, and the last upgrade.

    - `image`: the workers' image, and by whom it was chosen; None before the first plan.
    - `connection`: digest of the connection that the wanted revision was planned with.
    - `last`: the last upgrade; None before the first.
    """

    image: Image | None = None
    source: ImageSource | None = None
    connection: str | None = None
    last: Upgrade | None = None
