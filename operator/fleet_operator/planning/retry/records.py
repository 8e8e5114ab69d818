"""ConfigMaps with policies: one for each revision of a RetryPolicy, and one for each group.

Workers read the group's ConfigMap. The group's state has the times at which revisions were superseded, and the delays
that are being removed. Users may edit the ConfigMaps, so an unreadable ConfigMap counts as absent and is rewritten.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_consumer.contract.naming import content_hash
from fleet_consumer.contract.pod import POLICIES_FILE
from fleet_consumer.contract.policies import render_policies
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.model import HANDLER_LABEL
from fleet_operator.planning import labels
from fleet_operator.planning.fleet.manifests import head
from fleet_operator.planning.foreign_json import read_json
from fleet_operator.planning.objects import Owner, child_head, to_json
from fleet_operator.planning.retry.intent import DelayState, PolicyRevision, delays_of, sort_delays
from fleet_operator.planning.state.group import RetriesState

POLICY_KEY: Final = "policy.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The policies published to a group's workers, and the state of revisions and delays that are being removed. Times
    are epoch seconds.

    - `policy`: the name of the RetryPolicy.
    - `known`: the published revisions. `current`: the hash of the revision that records follow if they fail now.
    - `retiring`: the state, draining or leaving, of each delay that no known revision uses.
    - `drained`: draining delays whose topics the spec keeps, and in which no record waits. The delay that has been
      drained for the longest time is first.
    - `partitions`: the number of partitions that workers use in each retry topic.
    - `max_message_bytes`: the size limit of records that workers write to the managed topics.
    - `published_at`: the time of the last change of `file`.
    - `ending_since`: the time at which the spec stopped requesting retries; None while the spec requests them.
    """

    policy: str
    current: str
    known: tuple[PolicyRevision, ...]
    retiring: Mapping[str, DelayState] = field(default_factory=dict)
    drained: tuple[str, ...] = ()
    partitions: int
    max_message_bytes: int
    published_at: float = 0.0
    ending_since: float | None = None

    @property
    def states(self) -> dict[str, DelayState]:
        return {**self.retiring, **dict.fromkeys(delays_of(self.known), DelayState.IN_USE)}

    @property
    def delays(self) -> tuple[str, ...]:
        """The delays whose topics retry workers read, shortest first."""
        return sort_delays(delay for delay, state in self.states.items() if state is not DelayState.LEAVING)

    @property
    def leaving(self) -> tuple[str, ...]:
        return sort_delays(delay for delay, state in self.retiring.items() if state is DelayState.LEAVING)

    def state(self, before: RetriesState) -> RetriesState:
        superseded = {each.hash: each.superseded_at for each in self.known if each.superseded_at is not None}
        return replace(
            before,
            published_at=self.published_at,
            superseded=superseded,
            leaving=self.leaving,
            drained=self.drained,
            ending_since=self.ending_since,
        )

    @property
    def file(self) -> dict[str, Any]:
        """The content of `policies.json`, which workers read."""
        return render_policies(
            self.policy,
            {revision.hash: revision.content for revision in self.known},
            current=self.current,
            delays=self.delays,
            partitions=self.partitions,
            max_message_bytes=self.max_message_bytes,
        )

    @property
    def digest(self) -> str:
        return content_hash(self.file)


def group_config_map(group: ConsumerGroup, published: Published) -> dict[str, Any]:
    body = head("v1", "ConfigMap", group, naming.retry_config(group.metadata.name), labels.RETRY)
    body["metadata"]["labels"][HANDLER_LABEL] = labels.RECORD
    body["metadata"]["annotations"] = {labels.HASH_ANNOTATION: published.current}
    return {**body, "data": {POLICIES_FILE: to_json(published.file)}}


def read_published(config_map: Mapping[str, Any] | None, state: RetriesState) -> Published | None:
    """Combine a group's ConfigMap with the group's state; None if the ConfigMap is absent, unreadable or being deleted.

    The state is written before the ConfigMap. So the state may already list the ConfigMap's current revision as
    superseded although the new revision is not published yet. Such an entry of the state is ignored."""
    if config_map is None or config_map["metadata"].get("deletionTimestamp"):
        return None
    try:
        file = read_json((config_map.get("data") or {})[POLICIES_FILE])
        superseded = {name: at for name, at in state.superseded.items() if name != file["current"]}
        known = tuple(
            PolicyRevision(hash=name, content=content, superseded_at=superseded.get(name))
            for name, content in file["revisions"].items()
        )
        states = dict.fromkeys(state.leaving, DelayState.LEAVING) | dict.fromkeys(file["delays"], DelayState.DRAINING)
        in_use = delays_of(known)
        retiring = {delay: states[delay] for delay in sort_delays(states) if delay not in in_use}
        read = Published(
            policy=file["policy"],
            current=file["current"],
            known=known,
            retiring=retiring,
            drained=tuple(delay for delay in state.drained if retiring.get(delay) is DelayState.DRAINING),
            partitions=max(int(file["partitions"]), 1),
            max_message_bytes=int(file["maxMessageBytes"]),
            published_at=state.published_at or 0.0,
            ending_since=state.ending_since,
        )
        if any(content_hash(revision.content) != revision.hash for revision in known):
            return None  # somebody edited the content, so it no longer matches its hash
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return read if any(revision.hash == read.current for revision in known) else None


def policy_record_name(policy: str, revision: str) -> str:
    return f"{policy}-{revision}"


def policy_config_map(policy: Mapping[str, Any], revision: PolicyRevision) -> dict[str, Any]:
    """Build the ConfigMap with one revision of a RetryPolicy; `policy` is the RetryPolicy's metadata."""
    name = policy["name"]
    labelled = {
        labels.MANAGED_BY_LABEL: labels.MANAGER,
        labels.COMPONENT_LABEL: labels.POLICY,
        labels.POLICY_LABEL: name,
        HANDLER_LABEL: labels.RECORD,
    }
    owner = Owner("RetryPolicy", policy["namespace"], name, policy["uid"])
    body = child_head("v1", "ConfigMap", policy_record_name(name, revision.hash), owner=owner, labels=labelled)
    body["metadata"]["annotations"] = {labels.HASH_ANNOTATION: revision.hash}
    return {**body, "immutable": True, "data": {POLICY_KEY: to_json(revision.content)}}


def read_policy_record(config_map: Mapping[str, Any] | None) -> PolicyRevision | None:
    """Return the revision in a ConfigMap; None if the ConfigMap is absent or unreadable, or its content does not match
    its hash."""
    if config_map is None:
        return None
    try:
        content = read_json(config_map["data"][POLICY_KEY])
        kept = PolicyRevision(hash=content_hash(content), content=content)
        sort_delays(set(kept.sequence))
    except (KeyError, TypeError, ValueError):
        return None
    return kept if kept.hash == labels.annotation_of(config_map, labels.HASH_ANNOTATION) else None
