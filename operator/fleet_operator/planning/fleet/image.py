"""Choice of a fleet's worker image. The chosen image is stored in the group's state, so pods are not replaced just
because the operator has a new default image.

If `spec.image` is set, it is used. A new group without it gets the operator's default image, and so does a group from
which `spec.image` is removed. After that, only an upgrade in waves changes the image (see the module `waves`). The
image is written to the state before it is used, so if the operator is killed, its successor chooses the same image.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import StringConstraints, TypeAdapter, ValidationError

from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.planning.labels import CONTAINER
from fleet_operator.planning.state.group import ImageSource, UpgradeState

Reference = Annotated[str, StringConstraints(max_length=1024, pattern=r"^[A-Za-z0-9\[][A-Za-z0-9._:/@+\[\]-]*$")]
_REFERENCE: Final[TypeAdapter[str]] = TypeAdapter(Reference)


@dataclass(frozen=True, slots=True)
class WorkerImage:
    name: str
    source: ImageSource
    default: str


def choose_image(
    group: ConsumerGroup, state: UpgradeState, stateful_set: Mapping[str, Any] | None, *, default: str
) -> WorkerImage:
    """Choose the image. `default`: the operator's default image. If the state has no valid image (for example, because
    a backup was restored without the state), the fleet keeps the image of its StatefulSet."""
    if group.spec.image is not None:
        return WorkerImage(group.spec.image, "Spec", default)
    known = None if state.source == "Spec" else _readable(state.image) or running_image(stateful_set)
    return WorkerImage(known or default, "Operator", default)


def running_image(stateful_set: Mapping[str, Any] | None) -> str | None:
    template = ((stateful_set or {}).get("spec") or {}).get("template") or {}
    containers = (template.get("spec") or {}).get("containers") or ()
    return next((_readable(each.get("image")) for each in containers if each.get("name") == CONTAINER), None)


def _readable(image: Any) -> str | None:
    """Return the image if it is a valid reference, else None. Anybody may have written the value."""
    try:
        return _REFERENCE.validate_python(image)
    except ValidationError:
        return None
