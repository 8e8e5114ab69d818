"""Worker image of a fleet, pinned in `status.image`: an operator with another default image rolls no pods.

A group is pinned to the operator's default when it is made. From then on only `spec.image` changes the image: it wins
while it is set, and when it is removed the group is pinned anew, to the default of that moment. The image stands in the
status before anything uses it, so that an operator that is killed in between does not let the next one choose another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.planning.labels import CONTAINER

Source = Literal["Spec", "Operator"]

IMAGE_CHARACTERS_MAX: Final = 1024
_REFERENCE: Final = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:/@+\[\]-]*")
"""No more than the characters of an image reference: whatever else stands in a status was written by somebody else."""


@dataclass(frozen=True, slots=True)
class WorkerImage:
    """The image of a fleet's workers, who chose it, and the operator's default."""

    name: str
    source: Source
    default: str

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the status that record it."""
        return {"image": self.name, "imageSource": self.source}

    def is_recorded(self, status: Mapping[str, Any]) -> bool:
        return all(status.get(key) == value for key, value in self.fields.items())


def choose_image(group: ConsumerGroup, stateful_set: Mapping[str, Any] | None, *, default: str) -> WorkerImage:
    """The image of a group's workers.

    Without a usable status, as for an object that was restored without it, the fleet stays at the image that its
    StatefulSet runs. `default` is the operator's worker image.
    """
    if group.spec.image is not None:
        return WorkerImage(group.spec.image, "Spec", default)
    if group.status.get("imageSource") == "Spec":
        return WorkerImage(default, "Operator", default)
    pinned = _readable(group.status.get("image")) or running_image(stateful_set)
    return WorkerImage(pinned or default, "Operator", default)


def running_image(stateful_set: Mapping[str, Any] | None) -> str | None:
    """The image of the workers in a StatefulSet; None without a readable one."""
    template = ((stateful_set or {}).get("spec") or {}).get("template") or {}
    containers = (template.get("spec") or {}).get("containers") or ()
    return next((_readable(each.get("image")) for each in containers if each.get("name") == CONTAINER), None)


def _readable(image: Any) -> str | None:
    """An image reference, or None for what cannot be one."""
    possible = isinstance(image, str) and len(image) <= IMAGE_CHARACTERS_MAX and _REFERENCE.fullmatch(image)
    return image if possible else None
