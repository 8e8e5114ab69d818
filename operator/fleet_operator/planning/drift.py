"""Fields of our children that others have set in addition to ours.

An apply sets what we mean, and takes away only what we have set before. A container, a volume, a variable or an
annotation that another hand adds to a pod template stays, and would run unchecked. The API server notes who has set
which field; what it fills in by itself belongs to nobody, and what admission adds to our writes to us.

It also notes how: what we have set by a creation is ours twice over once it is applied, and stays when a later apply
leaves it out. So before the first apply over such an object all that is ours is noted as applied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fleet_operator.planning.foreign_json import read_object
from fleet_operator.planning.labels import MANAGER

EDITED: Final = "edited"
"""Mark in the metadata of a trimmed object, whose managed fields are cut."""
WRITTEN: Final = "written"
"""Mark in the metadata of a trimmed object: fields of it are ours by a creation or a patch, and not by an apply."""
NAMED_MAX: Final = 3
POD_CREATOR: Final = "kube-controller-manager"
CONTAINERS: Final = frozenset({"f:containers", "f:initContainers"})
OTHERS_PARTS: Final = frozenset({"f:apiVersion", "f:kind", "f:metadata", "f:status"})
"""Parts of an object in which others may set what they like."""
RESTARTED: Final = "kubectl.kubernetes.io/restartedAt"
"""Annotation of `kubectl rollout restart`; it changes nothing but the pods' age."""


def others_fields(metadata: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Fields that others than this operator have set outside of metadata and status, by the name of the manager."""
    found = dict[str, Mapping[str, Any]]()
    for entry in metadata.get("managedFields") or ():
        fields = {key: below for key, below in (entry.get("fieldsV1") or {}).items() if key not in OTHERS_PARTS}
        if fields and entry.get("manager") != MANAGER and not entry.get("subresource"):
            found[str(entry.get("manager"))] = fields
    return found


def has_written(metadata: Mapping[str, Any]) -> bool:
    """True if fields of an object are ours otherwise than by an apply."""
    return bool(metadata.get(WRITTEN)) or any(map(_is_written, metadata.get("managedFields") or ()))


def as_applied(metadata: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The managed fields of an object once all that is ours is noted as applied, as client-go's csaupgrade does it.

    An apply takes back what an apply has set, and nothing else.
    """
    entries = metadata.get("managedFields") or ()
    mine = [each for each in entries if each.get("manager") == MANAGER and not each.get("subresource")]
    others = [each for each in entries if each not in mine]
    fields: dict[str, Any] = {}
    for entry in mine:
        fields = _joined(fields, entry.get("fieldsV1") or {})
    return [*others, *({**entry, "operation": "Apply", "fieldsV1": fields} for entry in mine[-1:])]


def _is_written(entry: Mapping[str, Any]) -> bool:
    ours = entry.get("manager") == MANAGER and not entry.get("subresource")
    return ours and entry.get("operation") == "Update"


def changed_by(pod_metadata: Mapping[str, Any]) -> str:
    """Names of those who have changed a pod's containers since it was created; empty without any.

    Kubernetes lets anybody who may edit pods change their images. The controller that creates them writes to them
    later, too, and so do others by subresources: the kubelet the status, `kubectl debug` its containers.
    """
    created = str(pod_metadata.get("creationTimestamp", ""))
    names = set()
    for entry in pod_metadata.get("managedFields") or ():
        fields = (entry.get("fieldsV1") or {}).get("f:spec") or {}
        late = not entry.get("subresource") and str(entry.get("time", "")) > created
        if late and entry.get("manager") not in (MANAGER, POD_CREATOR) and CONTAINERS & fields.keys():
            names.add(str(entry.get("manager")))
    return ", ".join(sorted(names)[:NAMED_MAX])


def undoing(live: Mapping[str, Any], meant: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The merge patch that takes out of an object what others have set and nobody means, and the names of these.

    Where something in a list is theirs, the whole list is set again.
    """
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
    """True if something in a list is not meant: an entry, or a field of one."""
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
