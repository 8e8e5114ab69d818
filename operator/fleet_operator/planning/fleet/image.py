"""Worker image of a fleet, pinned in the group's state: an operator with another default image rolls no pods.

A group is pinned to the operator's default when it is made. From then on only `spec.image` changes the image: it wins
while it is set, and when it is removed the group is pinned again, to the default of that moment. The image stands in
the state before anything uses it, so that an operator that is killed in between does not let the next one choose
another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.planning.labels import CONTAINER
from fleet_operator.planning.state.group import Image, ImageSource, UpgradeState

_IMAGE: Final[TypeAdapter[str]] = TypeAdapter(Image)


@dataclass(frozen=True, slots=True)
class WorkerImage:
    """The image of a fleet's workers, who chose it, and the operator's default."""

    name: str
    source: ImageSource
    default: str

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the status that show it."""
        return {"image": self.name, "imageSource": self.source}


def choose_image(
    group: ConsumerGroup, state: UpgradeState, stateful_set: Mapping[str, Any] | None, *, default: str
) -> WorkerImage:
    """The image of a group's workers.

    Without an image in the state, as for an object that was restored without it, the fleet stays at the image that its
    StatefulSet runs. `default` is the operator's worker image.
    """
    if group.spec.image is not None:
        return WorkerImage(group.spec.image, "Spec", default)
    if state.source == "Spec":
        return WorkerImage(default, "Operator", default)
    return WorkerImage(state.image or running_image(stateful_set) or default, "Operator", default)


def running_image(stateful_set: Mapping[str, Any] | None) -> str | None:
    """The image of the workers in a StatefulSet; None without a readable one."""
    template = ((stateful_set or {}).get("spec") or {}).get("template") or {}
    containers = (template.get("spec") or {}).get("containers") or ()
    return next((_readable(each.get("image")) for each in containers if each.get("name") == CONTAINER), None)


def _readable(image: Any) -> str | None:
    """A reference to an image, or None for what cannot be one: whatever else stands there was written by somebody
    else."""
    try:
        return _IMAGE.validate_python(image)
    except ValidationError:
        return None
