"""Fields that other managers have set in the operator's children.

A server-side apply sets the operator's fields and removes only fields of the operator's earlier applies. So a
container, volume, variable or annotation that somebody else adds to a pod template would stay and run unchecked.
`managedFields` names the manager of each field. Defaults of the API server have no manager, and changes by admission
webhooks are recorded as the operator's.

`managedFields` also names the operation. If the operator sets a field by a create and applies the field later, both
operations are recorded. The field then stays even if a later apply omits it. So before its first apply to an object
that it created, the operator records all of its own fields as applied. If the operator is killed before it does so, the
next process finds the marker `WRITTEN`. After that, the object is in the same state as if it had always been applied.

Decision: docs/decisions/0057-cost-of-a-new-group.md.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fleet_operator.planning.foreign_json import read_object
from fleet_operator.planning.labels import MANAGER
from fleet_operator.planning.problem import NAMED_MAX

EDITED: Final = "edited"
"""Marker in the metadata of a trimmed object, in place of `managedFields`. It means that other managers have set
fields."""
WRITTEN: Final = "written"
"""Marker in the metadata of a trimmed object. It means that the operator set some of the object's fields by a create or
a patch."""
POD_CREATOR: Final = "kube-controller-manager"
CONTAINERS: Final = frozenset({"f:containers", "f:initContainers"})
OTHERS_PARTS: Final = frozenset({"f:apiVersion", "f:kind", "f:metadata", "f:status"})
"""Top-level fields of an object that other managers may change, as `managedFields` names them."""
RESTARTED: Final = "kubectl.kubernetes.io/restartedAt"
"""Annotation that `kubectl rollout restart` sets. The operator keeps it, because it only restarts pods."""


def others_fields(metadata: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Fields outside metadata and status that other managers have set, keyed by manager."""
    found = dict[str, Mapping[str, Any]]()
    for entry in metadata.get("managedFields") or ():
        fields = {key: below for key, below in (entry.get("fieldsV1") or {}).items() if key not in OTHERS_PARTS}
        if fields and entry.get("manager") != MANAGER and not entry.get("subresource"):
            found[str(entry.get("manager"))] = fields
    return found


def has_written(metadata: Mapping[str, Any]) -> bool:
    """True if the operator set fields of an object by a create or a patch, not by an apply."""
    return bool(metadata.get(WRITTEN)) or any(each.get("operation") == "Update" for each in _own_entries(metadata))


def _own_entries(metadata: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    entries = metadata.get("managedFields") or ()
    return [each for each in entries if each.get("manager") == MANAGER and not each.get("subresource")]


def as_applied(metadata: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return `managedFields` with all of the operator's fields recorded as applied, as client-go's csaupgrade does."""
    mine = _own_entries(metadata)
    others = [each for each in metadata.get("managedFields") or () if each not in mine]
    fields: dict[str, Any] = {}
    for entry in mine:
        fields = _joined(fields, entry.get("fieldsV1") or {})
    return [*others, *({**entry, "operation": "Apply", "fieldsV1": fields} for entry in mine[-1:])]


def changed_by(pod_metadata: Mapping[str, Any]) -> str:
    """Names of the managers that changed a pod's containers after its creation; everybody who may edit pods may change
    their images. Legitimate writers are left out: the operator, the controller that created the pod, and writers of
    subresources, such as the kubelet (status) and `kubectl debug` (ephemeral containers)."""
    created = str(pod_metadata.get("creationTimestamp", ""))
    names = set()
    for entry in pod_metadata.get("managedFields") or ():
        fields = (entry.get("fieldsV1") or {}).get("f:spec") or {}
        late = not entry.get("subresource") and str(entry.get("time", "")) > created
        if late and entry.get("manager") not in (MANAGER, POD_CREATOR) and CONTAINERS & fields.keys():
            names.add(str(entry.get("manager")))
    return ", ".join(sorted(names)[:NAMED_MAX])


def undoing(live: Mapping[str, Any], meant: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a merge patch, and the names of the managers whose changes it undoes. The patch removes unwanted fields of
    other managers. Lists are replaced as a whole."""
    patch, names = dict[str, Any](), list[str]()
    for manager, fields in sorted(others_fields(live["metadata"]).items()):
        mine = _undoing(fields, live, meant)
        if mine:
            patch = _joined(patch, mine)
            names.append(manager)
    return patch, tuple(names)


def _undoing(fields: Mapping[str, Any], live: Mapping[str, Any], meant: Mapping[str, Any]) -> dict[str, Any]:
    patch: dict[str, Any] = {}
    for name, below in ((key[2:], below) for key, below in fields.items() if key.startswith("f:")):
        wanted = meant.get(name)
        if name not in live or name == RESTARTED:
            continue
        if wanted in (None, {}, []):
            patch[name] = None
        elif isinstance(live[name], Mapping) and isinstance(wanted, Mapping):
            inner = _undoing(below, live[name], wanted)
            patch |= {name: inner} if inner else {}
        elif isinstance(live[name], list) and isinstance(wanted, list) and _differs(below, live[name], wanted):
            patch[name] = wanted
    return patch


def _differs(fields: Mapping[str, Any], live: Sequence[Any], meant: Sequence[Any]) -> bool:
    """True if the live list has an entry or a field that is not in the wanted list (`meant`)."""
    if len(live) != len(meant):
        return True
    for key, below in fields.items():
        names = read_object(key[2:]) if key.startswith("k:") else None
        if names is None:
            continue
        here, there = (
            next((each for each in entries if isinstance(each, Mapping) and names.items() <= each.items()), None)
            for entries in (live, meant)
        )
        if here is not None and (there is None or _undoing(below, here, there)):
            return True
    return False


def _joined(one: dict[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    joined = dict(one)
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(joined.get(key), dict)
        joined[key] = _joined(joined[key], value) if both else value
    return joined
