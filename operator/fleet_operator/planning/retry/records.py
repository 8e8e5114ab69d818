"""The ConfigMaps in which policies stand: one for each content of a RetryPolicy, and one for each group.

A group's own ConfigMap is what its workers read and, at the same time, the operator's memory: which revisions it has
told the workers of, since when another one has taken an older one's place, and which delays are on their way out.
Objects may have been touched by people: what cannot be read counts as not there, and is written anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.model import HANDLER_LABEL
from fleet_operator.planning import labels, times
from fleet_operator.planning.fleet.manifests import head
from fleet_operator.planning.fleet.revision import content_hash
from fleet_operator.planning.foreign_json import read_json
from fleet_operator.planning.labels import (
    ENDING_ANNOTATION,
    HASH_ANNOTATION,
    LEAVING_ANNOTATION,
    PUBLISHED_ANNOTATION,
    RECORD,
    SUPERSEDED_ANNOTATION,
)
from fleet_operator.planning.objects import Owner, child_head, to_json
from fleet_operator.planning.retry.intent import PolicyRevision, delays_of

FILE_VERSION: Final = 1
POLICIES_KEY: Final = "policies.json"
POLICY_KEY: Final = "policy.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a group's workers have been told, and what the operator remembers with it.

    - `known`: the revisions, the one that new failures follow (`current`) among them.
    - `draining`: delays that no known revision uses and whose topics the retry workers still read.
    - `leaving`: delays whose topics nobody reads any more and which are to be deleted.
    - `partitions` of each managed topic, and the `max_message_bytes` of what may be written to one.
    - `published_at`: when the workers' part last changed; `ending_since`: since when the group wants no retries any
      more. Epoch seconds.
    """

    policy: str
    current: str
    known: tuple[PolicyRevision, ...]
    draining: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()
    partitions: int
    max_message_bytes: int
    published_at: float = 0.0
    ending_since: float | None = None

    @property
    def delays(self) -> tuple[str, ...]:
        """What the retry workers read, shortest first."""
        return sort_delays({*delays_of(self.known), *self.draining})

    @property
    def file(self) -> dict[str, Any]:
        """The workers' part: the content of `policies.json`."""
        return {
            "version": FILE_VERSION,
            "policy": self.policy,
            "current": self.current,
            "revisions": {revision.hash: dict(revision.content) for revision in self.known},
            "delays": list(self.delays),
            "partitions": self.partitions,
            "maxMessageBytes": self.max_message_bytes,
        }

    @property
    def digest(self) -> str:
        """Short, and another one whenever the workers' part changes."""
        return content_hash(self.file)


def sort_delays(delays: set[str]) -> tuple[str, ...]:
    """Delays, shortest first."""
    return tuple(sorted(delays, key=naming.parse_delay))


def group_config_map(group: ConsumerGroup, published: Published) -> dict[str, Any]:
    """The ConfigMap that a group's workers mount."""
    body = head("v1", "ConfigMap", group, naming.retry_config(group.metadata.name), labels.RETRY)
    superseded = {
        revision.hash: times.to_text(revision.superseded_at)
        for revision in published.known
        if revision.superseded_at is not None
    }
    body["metadata"]["labels"][HANDLER_LABEL] = RECORD
    body["metadata"]["annotations"] = {
        HASH_ANNOTATION: published.current,
        PUBLISHED_ANNOTATION: times.to_text(published.published_at),
        SUPERSEDED_ANNOTATION: json.dumps(superseded, sort_keys=True),
        LEAVING_ANNOTATION: ",".join(published.leaving),
    }
    if published.ending_since is not None:
        body["metadata"]["annotations"][ENDING_ANNOTATION] = times.to_text(published.ending_since)
    return {**body, "data": {POLICIES_KEY: to_json(published.file)}}


def read_published(config_map: Mapping[str, Any] | None) -> Published | None:
    """What a group's ConfigMap says; None when there is none, or when it cannot be read."""
    if config_map is None or config_map["metadata"].get("deletionTimestamp"):
        return None
    annotations = config_map["metadata"].get("annotations") or {}
    try:
        file = read_json((config_map.get("data") or {})[POLICIES_KEY])
        superseded = read_json(annotations.get(SUPERSEDED_ANNOTATION, "{}"))
        known = tuple(
            PolicyRevision(hash=name, content=content, superseded_at=times.from_text(superseded.get(name)))
            for name, content in file["revisions"].items()
        )
        read = Published(
            policy=file["policy"],
            current=file["current"],
            known=known,
            leaving=tuple(delay for delay in annotations.get(LEAVING_ANNOTATION, "").split(",") if delay),
            partitions=max(int(file["partitions"]), 1),
            max_message_bytes=int(file["maxMessageBytes"]),
            published_at=times.from_text(annotations.get(PUBLISHED_ANNOTATION)) or 0.0,
            ending_since=times.from_text(annotations.get(ENDING_ANNOTATION)),
        )
        read = replace(read, draining=sort_delays(set(file["delays"]) - set(delays_of(known))))
        sort_delays(set(read.leaving))
        if any(content_hash(revision.content) != revision.hash for revision in known):
            return None  # workers must not follow, nor we reckon with, what no policy ever said
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return read if any(revision.hash == read.current for revision in known) else None


def policy_record_name(policy: str, revision: str) -> str:
    """The ConfigMap that keeps one content of a RetryPolicy."""
    return f"{policy}-{revision}"


def policy_config_map(policy: Mapping[str, Any], revision: PolicyRevision) -> dict[str, Any]:
    """The record of one content of a RetryPolicy; `policy` is the RetryPolicy's metadata."""
    name = policy["name"]
    marks = {
        labels.MANAGED_BY_LABEL: labels.MANAGER,
        labels.COMPONENT_LABEL: labels.POLICY,
        labels.POLICY_LABEL: name,
        HANDLER_LABEL: RECORD,
    }
    owner = Owner("RetryPolicy", policy["namespace"], name, policy["uid"])
    body = child_head("v1", "ConfigMap", policy_record_name(name, revision.hash), owner=owner, labels=marks)
    body["metadata"]["annotations"] = {HASH_ANNOTATION: revision.hash}
    return {**body, "immutable": True, "data": {POLICY_KEY: to_json(revision.content)}}


def read_policy_record(config_map: Mapping[str, Any] | None) -> PolicyRevision | None:
    """The content that a record keeps; None when there is none, or when it is not what its hash says."""
    if config_map is None:
        return None
    try:
        content = read_json(config_map["data"][POLICY_KEY])
        kept = PolicyRevision(hash=content_hash(content), content=content)
        sort_delays(set(kept.sequence))
    except (KeyError, TypeError, ValueError):
        return None
    return kept if kept.hash == policy_hash_of(config_map) else None


def policy_hash_of(config_map: Mapping[str, Any]) -> str:
    """The hash that a record of a policy stands for."""
    return str((config_map["metadata"].get("annotations") or {}).get(HASH_ANNOTATION, ""))
