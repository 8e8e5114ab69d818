"""Conditions of a ConsumerGroup, one function for each type.

The status has all types from the first reconcile on. A condition describes the present state. While facts are missing,
its status is Unknown, with a reason. No function in this module measures time.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.conditions import Condition
from fleet_operator.planning.fleet.rollout import RolloutPhase
from fleet_operator.planning.observation import GroupObservation
from fleet_operator.planning.problem import Problem, name_some
from fleet_operator.planning.scaling.dealing import most_useful
from fleet_operator.planning.state.group import Phase
from fleet_operator.planning.status.facts import ConsumerGroupFacts
from fleet_operator.planning.status.members import STABLE, Roster, sort_members
from fleet_operator.planning.status.problems import (
    deployment_problem,
    find_failure,
    find_problem,
    topics_problem,
    worker_problem,
)
from fleet_operator.planning.status.rollout import find_wait, progressing, refused, serving, stalled, updated_replicas
from fleet_operator.planning.status.scaling import scaling_active, scaling_limited


def project_conditions(
    facts: ConsumerGroupFacts, previous: Sequence[Mapping[str, Any]], stuck: Sequence[Any] | None
) -> list[Condition]:
    """Return all conditions, in their fixed order. `stuck`: the stuck partitions in the status; None if no worker ever
    answered."""
    observed = facts.observed_group
    roster = sort_members(facts.group, observed.members, facts.workers, facts.pods) if observed else None
    problem, kept = find_problem(facts), _retries_kept(facts)
    found = (
        _ready(facts, previous, roster, problem),
        progressing(facts),
        serving(facts),
        stalled(facts),
        _cluster_reachable(facts),
        _lag_known(facts),
        scaling_active(facts),
        _scaling_limited(facts),
        _paused(facts),
        stuck_condition := _stuck(facts, stuck),
        _degraded(facts, problem, stuck_condition, kept),
        _topics_ready(facts),
        _group_shared(facts, roster),
        _upgrade_available(facts),
        _offsets_kept(facts),
        kept,
    )
    assert tuple(condition.type for condition in found) == c.CONSUMER_GROUP_CONDITIONS
    return list(found)


def _ready(
    facts: ConsumerGroupFacts, previous: Sequence[Mapping[str, Any]], roster: Roster | None, problem: Problem | None
) -> Condition:
    """True if the newest revision runs, all wanted workers are ready without a configuration error, and the Kafka group
    has been Stable with all of them.

    Once True, the condition stays True during rebalances. It becomes False because of missing workers, a newer
    revision, a refusal, a configuration error, a suspension or an OffsetReset. The condition Serving then shows if the
    last good revision handles records."""
    wanted = facts.scale.replicas
    if facts.group.spec.suspend:
        return Condition(c.READY, "False", c.SUSPENDED, "spec.suspend is true: no workers run")
    if facts.hold is not None:
        return Condition(c.READY, "False", c.RESETTING_OFFSETS, facts.hold.text)
    if wanted == 0 and problem is None:
        why = "spec.replicas is 0" if facts.group.spec.scaling is None else "no record waits and none arrives"
        return Condition(c.READY, "True", c.FLEET_READY, f"{why}: no workers are wanted")
    ready = facts.fleet.ready_replicas if facts.fleet else 0
    enough = facts.fleet is not None and facts.fleet.replicas >= wanted > 0 and ready >= wanted
    was_ready = (c.find_condition(previous, c.READY) or {}).get("status") == "True"
    stable = facts.observed_group is not None and facts.observed_group.state == STABLE
    together = stable and roster is not None and len(roster.ours) >= wanted
    phase = facts.rollout.phase
    good = refused(facts) is None and deployment_problem(facts) is None
    if phase is RolloutPhase.SETTLED and enough and (was_ready or together) and good:
        return Condition(c.READY, "True", c.FLEET_READY, f"{wanted} of {wanted} workers are ready")
    if problem is not None:
        return Condition(c.READY, "False", problem.reason, problem.message)
    waits = find_wait(facts) if phase is not RolloutPhase.SETTLED else None
    if waits is not None:
        return Condition(c.READY, "False", c.WAITING, f"{waits.reason}: {waits.message}")
    if phase is RolloutPhase.CHECKING:
        message = "a check pod tests the newest revision; workers run it when the check succeeds"
        return Condition(c.READY, "False", c.CHECKING_REVISION, message)
    if phase is not RolloutPhase.SETTLED:
        updated = updated_replicas(facts)
        message = f"{updated} of {wanted} workers run revision {facts.revision}: see Progressing"
        return Condition(c.READY, "False", c.ROLLING_OUT, message)
    if not enough:
        message = f"{min(ready, wanted)} of {wanted} workers are ready"
        return Condition(c.READY, "False", c.WAITING_FOR_REPLICAS, message)
    message = "all workers are ready, but the Kafka group has not been Stable with all of them yet"
    return Condition(c.READY, "False", c.WAITING_FOR_GROUP, message)


def _cluster_reachable(facts: ConsumerGroupFacts) -> Condition:
    name = facts.group.spec.cluster_ref.name
    observation = facts.observation
    if isinstance(facts.cluster, Problem):
        return Condition(c.CLUSTER_REACHABLE, "False", facts.cluster.reason, facts.cluster.message)
    if observation is None:
        message = f"KafkaCluster {name!r} has not been observed yet"
        return Condition(c.CLUSTER_REACHABLE, "Unknown", c.NOT_YET_OBSERVED, message)
    if observation.reachable:
        return Condition(c.CLUSTER_REACHABLE, "True", c.REACHED, f"the brokers of KafkaCluster {name!r} answer")
    return Condition(c.CLUSTER_REACHABLE, "False", observation.reason or c.BROKER_UNREACHABLE, observation.message)


def _not_observed(facts: ConsumerGroupFacts, kind: str) -> Condition:
    """Return the condition `kind` as Unknown, with the reason why the cluster or the group could not be observed."""
    observation = facts.observation
    if isinstance(facts.cluster, Problem):
        message = "the KafkaCluster cannot be used, so nothing can be observed: see ClusterReachable"
        return Condition(kind, "Unknown", facts.cluster.reason, message)
    if observation is None:
        return Condition(kind, "Unknown", c.NOT_YET_OBSERVED, "the Kafka cluster has not been observed yet")
    if not observation.reachable:
        message = "the Kafka cluster does not answer; the status shows the last known values: see ClusterReachable"
        return Condition(kind, "Unknown", observation.reason or c.BROKER_UNREACHABLE, message)
    group = observation.groups.get(facts.group.group_id)
    if group is not None and group.error:
        message = f"the coordinator of Kafka group {group.group_id!r} answers {group.error}"
        return Condition(kind, "Unknown", group.error, f"{message}; the status shows the last known values")
    return Condition(kind, "Unknown", c.NOT_YET_OBSERVED, "the Kafka group has not been observed yet")


def _lag_known(facts: ConsumerGroupFacts) -> Condition:
    lag = facts.view.lag
    if facts.observed_group is None:
        unknown = _not_observed(facts, c.LAG_KNOWN)
        seen_before = facts.observation is not None and unknown.reason != c.NOT_YET_OBSERVED
        return Condition(c.LAG_KNOWN, "False", unknown.reason, unknown.message) if seen_before else unknown
    if lag is None or facts.view.partition_counts is None:
        problem = topics_problem(facts)
        if problem is None:
            return Condition(c.LAG_KNOWN, "Unknown", c.NOT_YET_OBSERVED, "the topics have not been observed yet")
        return Condition(c.LAG_KNOWN, "False", problem.reason, problem.message)
    if not lag.complete:
        keys = [key for key, value in lag.partitions.items() if value is None]
        return _lag_unknown(facts.observed_group, keys, facts.group.spec.consumer.auto_offset_reset)
    return Condition(c.LAG_KNOWN, "True", c.ALL_PARTITIONS_KNOWN, "the offsets of all partitions are known")


def _lag_unknown(observed: GroupObservation, unknown: Sequence[tuple[str, int]], reset: str) -> Condition:
    """Return the condition LagKnown for an unknown lag. If there are several reasons, a reason that a user must resolve
    is preferred."""
    beyond = [key for key in unknown if key in observed.beyond_end]
    silent = [key for key in unknown if key not in observed.end_offsets]
    reason, keys = c.NOT_COMMITTED_YET, list(unknown)
    if beyond:
        reason, keys = c.COMMIT_BEYOND_END, beyond
        text = (
            "the committed offsets in {} are beyond the log end offsets, because the topic was recreated or lost its "
            "last records; running workers move to the right offset automatically: if none run, create an OffsetReset"
        )
    elif silent:
        reason, keys = c.PARTITIONS_UNKNOWN, silent
        text = "the brokers returned no offsets for {}: check the leaders of these partitions"
    elif reset == "None":
        text = (
            "the group has no commit in {}, and autoOffsetReset is None, so workers do not read these partitions until "
            "an OffsetReset sets an offset; they start automatically only in partitions that are added while they run"
        )
    else:
        text = (
            "the group has no commit in {}, so its start offset there is unknown: a worker commits this offset when it "
            "starts"
        )
    named = name_some([f"{topic}-{number}" for topic, number in keys])
    return Condition(c.LAG_KNOWN, "False", reason, text.format(named))


def _scaling_limited(facts: ConsumerGroupFacts) -> Condition:
    counts = facts.view.partition_counts
    if facts.group.spec.scaling is not None:
        return scaling_limited(facts)
    if counts is None:
        problem = topics_problem(facts)
        if problem is not None:
            return Condition(c.SCALING_LIMITED, "Unknown", problem.reason, problem.message)
        return _not_observed(facts, c.SCALING_LIMITED)
    observed = facts.observed_group
    assignor = (observed.assignor if observed is not None else "") or facts.group.spec.consumer.classic.assignors[0]
    useful = most_useful(counts, assignor)
    idle = facts.scale.replicas - useful
    if idle > 0:
        message = (
            f"{facts.scale.replicas} workers are wanted, but only {useful} can own a partition, which leaves {idle} "
            "without work: lower spec.replicas, or add partitions"
        )
        return Condition(c.SCALING_LIMITED, "True", c.MORE_WORKERS_THAN_PARTITIONS, message)
    return Condition(c.SCALING_LIMITED, "False", c.WITHIN_BOUNDS, "every worker can own a partition")


def _paused(facts: ConsumerGroupFacts) -> Condition:
    if facts.group.paused:
        message = "annotation consumerfleet.io/paused is set: the operator changes nothing; remove it to resume"
        return Condition(c.PAUSED, "True", c.PAUSED_BY_ANNOTATION, message)
    if facts.group.spec.suspend:
        return Condition(c.PAUSED, "True", c.SUSPENDED, "spec.suspend is true: no workers run")
    return Condition(c.PAUSED, "False", c.NOT_PAUSED, "the group is neither paused nor suspended")


def _stuck(facts: ConsumerGroupFacts, stuck: Sequence[Any] | None) -> Condition:
    """True if records are stuck. Unknown while a worker fails or no worker answers, because a stuck record may be the
    cause."""
    if stuck:
        named = [f"{entry['topic']}-{entry['partition']}:{entry['offset']}" for entry in stuck]
        first = stuck[0]  # the oldest entry
        oldest = f"the oldest in pod {first['pod']} since {first['since']}"
        message = f"records that workers cannot complete: {name_some(named)}; {oldest}"
        # Entries from workers of an older version have no reason.
        why = [word for word in (first.get("reason"), first.get("message")) if word]
        return Condition(c.STUCK, "True", c.PARTITION_STUCK, ": ".join([message, *why]))
    problem = find_failure(facts.all_pods) or worker_problem(facts)
    if problem is not None and problem.reason != c.COMMITS_REFUSED:
        message = f"it is unknown whether a record causes this: {problem.message}"
        return Condition(c.STUCK, "Unknown", problem.reason, message)
    if stuck is None:
        return Condition(c.STUCK, "Unknown", c.NOT_YET_OBSERVED, "no worker has reported yet")
    if facts.scale.replicas > 0 and not facts.workers:
        running = f"none of {len(facts.pods)} workers answers the operator" if facts.pods else "no worker runs"
        return Condition(c.STUCK, "Unknown", c.WORKERS_SILENT, f"{running}: their progress is unknown")
    return Condition(c.STUCK, "False", c.ALL_PARTITIONS_MOVE, "no worker reports a stuck partition")


def _degraded(
    facts: ConsumerGroupFacts, problem: Problem | None, stuck_condition: Condition, kept: Condition
) -> Condition:
    """True if a user should act. The fleet may still work. The message about a refused revision names the revision that
    keeps running."""
    phase, cause = facts.rollout.phase, facts.rollout.cause
    runs = facts.fleet is not None and facts.rollout.target is not None and facts.scale.replicas > 0
    stays = f"; revision {facts.rollout.target} keeps running" if runs else ""
    if phase is RolloutPhase.REFUSED and cause is not None:
        message = f"the newest revision is refused: {cause.reason}: {cause.message}{stays}"
        return Condition(c.DEGRADED, "True", c.REVISION_REFUSED, message)
    if phase is RolloutPhase.CHECK_FAILED and cause is not None and problem in (None, cause):
        message = f"the newest revision waits: {cause.reason}: {cause.message}{stays}; it is checked again every minute"
        return Condition(c.DEGRADED, "True", c.REVISION_HELD, message)
    if problem is not None:
        return Condition(c.DEGRADED, "True", problem.reason, problem.message)
    if facts.open_breakers:
        message = (
            f"too many records fail in {name_some(facts.open_breakers)}: these workers try one record at a time until "
            "it succeeds; check the systems that the handler depends on"
        )
        return Condition(c.DEGRADED, "True", c.BREAKER_OPEN, message)
    if stuck_condition.status == "True":
        return Condition(c.DEGRADED, "True", stuck_condition.reason, stuck_condition.message)
    expiry = facts.expiry.problem
    if expiry is not None:
        return Condition(c.DEGRADED, "True", expiry.reason, expiry.message)
    if kept.status == "False" and kept.reason != c.PAUSED_BY_ANNOTATION:
        return Condition(c.DEGRADED, "True", kept.reason, kept.message)
    if facts.observation is None:
        return Condition(c.DEGRADED, "Unknown", c.NOT_YET_OBSERVED, "the Kafka cluster has not been observed yet")
    return Condition(c.DEGRADED, "False", c.AS_WANTED, "no problem is known")


def _topics_ready(facts: ConsumerGroupFacts) -> Condition:
    problem = topics_problem(facts)
    if problem is not None:
        return Condition(c.TOPICS_READY, "False", problem.reason, problem.message)
    if facts.observation is None or not facts.observation.reachable:
        return _not_observed(facts, c.TOPICS_READY)
    known, sources = facts.observation.topics, facts.view.source_topics
    needed = (*(sources or ()), *facts.group.spec.handler.outputs)
    plan = facts.view.topics
    if sources is None or plan.ready is None or any(name not in known for name in needed):
        return Condition(c.TOPICS_READY, "Unknown", c.NOT_YET_OBSERVED, "the topics have not been observed yet")
    if plan.create:
        message = f"topics are being created: {name_some([topic.name for topic in plan.create])}"
        return Condition(c.TOPICS_READY, "False", c.TOPIC_NOT_CREATED, message)
    if not plan.ready:
        changing = dict.fromkeys([*(topic.name for topic in plan.grow), *plan.alter])
        return Condition(
            c.TOPICS_READY, "False", c.TOPICS_CHANGING, f"topics are being changed: {name_some(list(changing))}"
        )
    if facts.retry is not None:
        message = "the source, output, retry and failed topics exist with the wanted settings"
        return Condition(c.TOPICS_READY, "True", c.TOPICS_EXIST, message)
    return Condition(c.TOPICS_READY, "True", c.TOPICS_EXIST, "the source, output and failed topics exist")


def _group_shared(facts: ConsumerGroupFacts, roster: Roster | None) -> Condition:
    if roster is None:
        return _not_observed(facts, c.GROUP_SHARED)
    if roster.foreign:
        named = name_some([member.instance_id or member.client_id or member.member_id for member in roster.foreign])
        message = (
            f"members of other programs are in the Kafka group: {named}; they take a share of its partitions, and the "
            "operator never removes them: if this is not intended, use another group id for them or for the fleet"
        )
        return Condition(c.GROUP_SHARED, "True", c.FOREIGN_MEMBERS, message)
    message = "all members of the Kafka group are workers of this fleet"
    return Condition(c.GROUP_SHARED, "False", c.ONLY_OUR_MEMBERS, message)


def _offsets_kept(facts: ConsumerGroupFacts) -> Condition:
    """False if the commits of the empty Kafka group may expire or have expired."""
    if facts.expiry.verdict is None:
        return _not_observed(facts, c.OFFSETS_KEPT)
    return Condition(c.OFFSETS_KEPT, *facts.expiry.verdict)


def _retries_kept(facts: ConsumerGroupFacts) -> Condition:
    """False if retention may delete records that wait in retry topics."""
    if facts.observed_group is None:
        return _not_observed(facts, c.RETRIES_KEPT)
    found = facts.retries_kept
    return Condition(c.RETRIES_KEPT, found.status, found.reason, found.message)


def _upgrade_available(facts: ConsumerGroupFacts) -> Condition:
    """True if the fleet has another worker image or connection than a new group would now get, or if another version of
    the operator rendered its pods."""
    image, upgrade, wait = facts.image, facts.upgrade, facts.slot.wait
    differs = image.source == "Operator" and image.name != image.default
    stays = f"workers stay at image {image.name} (status.image); the operator's worker image is now {image.default}"
    if wait is not None:
        message = f"{stays}: {wait.message}" if differs else wait.message
        return Condition(c.UPGRADE_AVAILABLE, "True", wait.reason, message)
    if differs:
        message = f"{stays}: set spec.image to that image to upgrade"
        return Condition(c.UPGRADE_AVAILABLE, "True", c.DEFAULT_IMAGE_DIFFERS, message)
    if upgrade is not None and upgrade.phase is not Phase.COMPLETE:
        message = "a change of the operator or of the KafkaCluster is being rolled out: see Progressing"
        return Condition(c.UPGRADE_AVAILABLE, "False", c.UPGRADING, message)
    if facts.kept:
        message = (
            "the workers' pods were planned by another version of the operator: to replace them with pods of this "
            "version, change spec.template in any way, for example add an annotation"
        )
        return Condition(c.UPGRADE_AVAILABLE, "True", c.PLANNED_BY_ANOTHER_VERSION, message)
    if image.source == "Spec":
        return Condition(c.UPGRADE_AVAILABLE, "False", c.IMAGE_FROM_SPEC, "spec.image names the workers' image")
    return Condition(c.UPGRADE_AVAILABLE, "False", c.UP_TO_DATE, "workers run the operator's worker image")
