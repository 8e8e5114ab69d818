"""Digests of the pod templates that the operator rendered for a fleet, to detect forged records.

A revision's record is a ConfigMap, and the operator runs pods from the template in it. So that the right to write
ConfigMaps does not become the right to run any pod, the StatefulSet carries the digests of the templates rendered from
the spec: whoever may change a StatefulSet may run pods anyway. A record without a digest there is ignored, whatever its
content. A StatefulSet without the annotation is older than the annotation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from fleet_operator.planning.fleet.rollout import RevisionRecord
from fleet_operator.planning.foreign_json import read_json
from fleet_operator.planning.labels import KNOWN_ANNOTATION


def template_digest(pod_template: Mapping[str, Any]) -> str:
    """Digest of a template, independent of the order of its keys."""
    canonical = json.dumps(pod_template, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def is_known(stateful_set: Mapping[str, Any] | None, record: RevisionRecord) -> bool:
    """True if a record's template may be run: the fleet's StatefulSet names it.

    Without a StatefulSet nothing was ever run, so there is nothing to go back to.
    """
    if stateful_set is None:
        return False
    text = (stateful_set["metadata"].get("annotations") or {}).get(KNOWN_ANNOTATION)
    if text is None:
        return True
    try:
        known = read_json(text)
    except ValueError:
        return False
    return isinstance(known, dict) and known.get(record.hash) == template_digest(record.pod_template)


def known_to(stateful_set: Mapping[str, Any] | None) -> frozenset[str]:
    """The revisions with a digest on the StatefulSet."""
    text = ((stateful_set or {}).get("metadata", {}).get("annotations") or {}).get(KNOWN_ANNOTATION, "")
    try:
        known = read_json(text)
    except ValueError:
        return frozenset()
    return frozenset(known) if isinstance(known, dict) else frozenset()


def with_known(stateful_set: Mapping[str, Any], templates: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The StatefulSet with the digests of these templates, by revision."""
    digests = {revision: template_digest(template) for revision, template in sorted(templates.items())}
    metadata = stateful_set["metadata"]
    annotations = {**metadata["annotations"], KNOWN_ANNOTATION: json.dumps(digests, sort_keys=True)}
    return {**stateful_set, "metadata": {**metadata, "annotations": annotations}}
