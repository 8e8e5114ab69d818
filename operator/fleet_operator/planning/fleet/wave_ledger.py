"""Ledger of upgrades in waves: the rollout statuses of all groups, and the groups that may start.

There is one rollout for the operator's worker image, and one for the connection of each KafkaCluster. Canaries go
first. They are the groups with the canary label or, without such groups, the first group by name. When all canaries are
complete, the other groups follow. A failed group stops its rollout for all groups that have not started. If a failed
group is suspended, it still counts as failed. Suspending the group is often the first reaction to a failure, and must
not release the other groups.

Any tenant may have many failing groups. So a group holds up other groups only for a limited time, either as a canary,
in a slot or by a failure. After this time, its namespace is late: the namespace goes last in this rollout, and never
again holds up another namespace in this rollout. The groups of a late namespace still wait for one another, and for a
canary of their own, because the change may fail in all of them. Namespaces get slots in rotation.

The bound limits the number of upgrading groups in all rollouts together. An administrator may disable every limit
except the bound. The ledger counts the upgrading groups from the groups' states, and adds slots that no state shows
yet. So concurrent reconciles do not exceed the bound, and the next operator process does not either.

There are three exceptions to the bound. A failed group that recovers occupies a slot again. A resumed group continues
immediately. One group too many may start if the API server accepts a write of a former leader that has lost the Lease.

The cost of recording a group's change does not depend on the number of groups. The search for the next groups visits
each namespace. With 5,000 groups, the measured cost per group is 0.05 ms in one namespace, 0.5 ms in 50 namespaces, and
3.8 ms in 500 namespaces.

Decision: docs/decisions/0046-waves-and-adoption.md.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Final

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.planning.fleet.waves import NO_SLOT, Key, RolloutStatus, Slot
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.group import Phase, UpgradeState

IMAGE_REMEDY: Final = (
    "The rollout continues when the failed group runs this image after all, is given an image in spec.image, or is "
    "deleted; another worker image of the operator starts a new rollout"
)
CONNECTION_REMEDY: Final = (
    "The rollout continues when the failed group runs with this connection after all, or is deleted; another edit of "
    "the KafkaCluster starts a new rollout"
)

WAITS: Final = "waits"
ROLLS: Final = "rolls"
FAILED: Final = "failed"
Hold = tuple[str, Key, str]
"""A reason why groups wait, as a tuple: the rollout's `what` (empty for an occupied slot), the group that holds up the
others, and the state of that group."""


@dataclass(slots=True)
class UpgradeRollout:
    """The rollout of one change through its groups; each list is sorted by name.

    - `waiting`: groups that have not started; `canaries`: the waiting groups with the canary label.
    - `rolling`, `complete`, `failed`: groups that have started; `rolling_canaries`: canaries that are upgrading.
    - `what`, `remedy`: parts of messages: the change, and the remedy for a failure.
    - `late`: holds that have lasted too long, so that no group waits for them any more.
    - `late_namespaces`: namespaces that have had a late hold; they hold up only their own groups.
    """

    what: str
    remedy: str
    late: frozenset[Hold] = frozenset()
    late_namespaces: set[str] = field(default_factory=set)
    waiting: list[Key] = field(default_factory=list)
    canaries: list[Key] = field(default_factory=list)
    rolling: list[Key] = field(default_factory=list)
    rolling_canaries: list[Key] = field(default_factory=list)
    complete: list[Key] = field(default_factory=list)
    failed: list[Key] = field(default_factory=list)

    def enter(self, key: Key, status: RolloutStatus, *, arrived: bool, waits: bool) -> None:
        """Add a group. `arrived`: the group's last upgrade includes this change. `waits`: the group still waits for the
        change."""
        if waits:
            insort(self.waiting, key)
            if status.canary:
                insort(self.canaries, key)
        upgrade = status.upgrade
        if not arrived or upgrade is None:
            return
        if upgrade.phase is Phase.FAILED:
            insort(self.failed, key)
        elif upgrade.phase is Phase.COMPLETE:
            insort(self.complete, key)
        elif status.rolls:
            insort(self.rolling, key)
            if status.canary:
                insort(self.rolling_canaries, key)

    def leave(self, key: Key) -> None:
        for each in (self.waiting, self.canaries, self.rolling, self.rolling_canaries, self.complete, self.failed):
            if _has(each, key):
                del each[bisect_left(each, key)]

    def leads(self, key: Key) -> bool:
        """True if this waiting group does not have to wait for a canary."""
        first = self._first(key[0])
        return first is None or _has(first, key)

    @property
    def rolls(self) -> bool:
        """True if at least one upgrading group holds up others."""
        return any(self._holding(self.rolling, ROLLS, ""))

    def stopped_by(self, namespace: str) -> Key | None:
        """The failed group that stops the groups of a namespace, or None."""
        return next(self._holding(self.failed, FAILED, namespace), None)

    def leader(self, namespace: str) -> Key | None:
        """The first canary for which the groups of a namespace wait, or None. Without a canary label, another group
        serves as the canary."""
        canaries = (self.rolling_canaries, ROLLS), (self.canaries, WAITS)
        others = (self._counted(self.rolling, namespace), ROLLS), (self._counted(self.waiting, namespace), WAITS)
        return next(chain.from_iterable(self._holding(keys, by, namespace) for keys, by in (*canaries, *others)), None)

    def ready(self, most: int, *, force: bool) -> Iterator[Key]:
        """Yield the groups that may start as soon as the bound permits, at most `most` per namespace. With `force`,
        canaries and failures hold up no group."""
        for view in ("", *self.late_namespaces):
            if force or self.stopped_by(view) is None:
                first = None if force else self._first(view)
                keys = _first_of_each(self._counted(self.waiting, view), most) if first is None else first[:most]
                yield from (key for key in keys if force or view or key[0] not in self.late_namespaces)

    def holds(self, *, free: bool) -> set[Hold]:
        """All holds, including late holds. A waiting canary holds up other groups only if a slot is `free` for it."""
        able = [view for view in ("", *self.late_namespaces) if free and self.stopped_by(view) is None]
        waits = {(self.what, key, WAITS) for view in able for key in self._first(view) or ()}
        waits |= {hold for hold in self.late if hold[2] == WAITS and _has(self.waiting, hold[1])}
        rolls = {(self.what, key, ROLLS) for key in self.rolling}
        return waits | rolls | {(self.what, key, FAILED) for key in self.failed}

    def _first(self, namespace: str) -> list[Key] | None:
        """The waiting canaries, which go before the other groups of a namespace. Empty while a canary is upgrading and
        none waits. None once no group of the namespace has to wait for a canary."""
        canaries = list(self._holding(self.canaries, WAITS, namespace))
        if canaries or any(self._holding(self.rolling_canaries, ROLLS, namespace)):
            return canaries
        if self._counted(self.complete, namespace):
            return None
        if any(self._holding(self._counted(self.rolling, namespace), ROLLS, namespace)):
            return []
        return list(islice(self._holding(self._counted(self.waiting, namespace), WAITS, namespace), 1))

    def _holding(self, keys: list[Key], by: str, namespace: str) -> Iterator[Key]:
        """Yield the groups among `keys`, all in the state `by`, that hold up the groups of a namespace."""
        for key in keys:
            if (key[0] == namespace or key[0] not in self.late_namespaces) and (self.what, key, by) not in self.late:
                yield key

    def _counted(self, keys: list[Key], namespace: str) -> list[Key]:
        """Return the groups among `keys` that count when a namespace has to choose a canary without the label. For a
        late namespace, these are its own groups. For other namespaces, they are all groups."""
        if namespace not in self.late_namespaces:
            return keys
        return keys[bisect_left(keys, (namespace, "")) : _end(keys, namespace)]


@dataclass(slots=True)
class WaveLedger:
    """The rollout statuses of all groups of one operator, and the operator's slots. Pure, with one caller at a time.

    - `bound`: the maximum number of groups that upgrade concurrently; 0 disables waves.
    - `image`: the operator's worker image.
    - `deadline_s`: seconds for which a group may hold up others; 0 means no limit.
    - `force`: only the bound holds up groups; canaries and failures do not.
    """

    bound: int
    image: str
    deadline_s: float = 0.0
    force: bool = False
    _since: dict[Hold, float] = field(default_factory=dict)  # start of each hold, monotonic seconds
    _late: set[Hold] = field(default_factory=set)
    _late_places: set[Key] = field(default_factory=set)
    _last: str = ""  # the namespace of the last slot
    _statuses: dict[Key, RolloutStatus] = field(default_factory=dict)
    _rolling: set[Key] = field(default_factory=set)
    _given: dict[Key, Slot] = field(default_factory=dict)  # slots that no state shows yet
    _images: UpgradeRollout = field(default_factory=lambda: UpgradeRollout("the operator's worker image", IMAGE_REMEDY))
    _connections: dict[Key, UpgradeRollout] = field(default_factory=dict)
    _digests: dict[Key, str] = field(default_factory=dict)  # digest of each KafkaCluster's connection
    _of_cluster: dict[Key, set[Key]] = field(default_factory=dict)
    _busy: set[Key] = field(default_factory=set)  # KafkaClusters whose rollout has waiting or failed groups

    def record_group(self, key: Key, status: RolloutStatus | None) -> bool:
        """Record a group's rollout status, or its deletion if `status` is None. Return True if the status changed."""
        before = self._statuses.get(key)
        if status == before:
            return False
        if before is not None:
            self._leave(key, before)
        if status is None:
            self._given.pop(key, None)
            return True
        self._statuses[key] = status
        self._of_cluster.setdefault(status.cluster, set()).add(key)
        if status.rolls:
            self._rolling.add(key)
        arrived = status.upgrade is not None and status.upgrade.image == self.image == status.image
        pulls = status.waits_for_image(self.image)
        self._images.enter(key, status, arrived=arrived, waits=pulls)
        self._enter_connection(key, status)
        self._track(status.cluster)
        # Keep a granted slot while no state shows it and the group may still use it.
        given, connects = self._given.get(key, NO_SLOT), status.waits_for_connection(self._digests.get(status.cluster))
        if not ((given.image and pulls) or (given.connection and connects)):
            self._given.pop(key, None)
        return True

    def record_cluster(self, cluster: Key, connection: str | None) -> bool:
        """Record the digest of a KafkaCluster's connection (None while unknown). Return True if the digest changed."""
        if self._digests.get(cluster) == connection:
            return False
        self._digests.pop(cluster, None)
        former = self._connections.pop(cluster, None)
        if former is not None:
            self._since = {hold: since for hold, since in self._since.items() if hold[0] != former.what}
        if connection is not None:
            self._digests[cluster] = connection
            self._connections[cluster] = UpgradeRollout(
                f"the changed connection of KafkaCluster {'/'.join(cluster)}", CONNECTION_REMEDY
            )
            for key in self._of_cluster.get(cluster, ()):
                self._enter_connection(key, self._statuses[key])
        self._track(cluster)
        return True

    def slot(self, key: Key) -> Slot:
        """Return a slot with the changes that the group may take over now. A slot with a change counts against the
        bound."""
        status = self._statuses.get(key)
        if self.bound == 0:
            return NO_SLOT
        if status is None:
            return Slot(waves=True)
        if (alone := self.slot_alone(key)).begins:
            return alone
        connects = status.waits_for_connection(self._digests.get(status.cluster))
        pulls = status.waits_for_image(self.image)
        if not (connects or pulls):
            return Slot(waves=True, wait=self._unable(key, status))
        obstacle = self._obstacle(self._connections[status.cluster], key) if connects else None
        if obstacle is not None:
            # A new revision with the image would also have the new connection, so the image waits too. The connection
            # never waits for the image.
            return Slot(waves=True, wait=obstacle)
        held_back = self._obstacle(self._images, key) if pulls else None
        slot = Slot(waves=True, image=pulls and held_back is None, connection=connects, wait=held_back)
        if slot.begins:
            self._given[key], self._last = slot, key[0]
        return slot

    def is_behind(self, cluster: Key, state: UpgradeState) -> bool:
        """True if the state has another image than the operator, or another connection than the KafkaCluster."""
        image = state.source == "Operator" and state.image not in (None, self.image)
        return image or (state.connection is not None and self._digests.get(cluster) not in (None, state.connection))

    def slot_alone(self, key: Key) -> Slot:
        """The slot of a group whose fleet is down. The bound, canaries and failed groups do not hold up such a
        group."""
        status = self._statuses.get(key)
        if self.bound == 0 or status is None:
            return NO_SLOT
        return status.slot_alone(self.image, self._digests.get(status.cluster))

    def edited(self, key: Key) -> None:
        """Record an edit of a group's spec: the group is not `whole` until its next rollout status is recorded."""
        status = self._statuses.get(key)
        if status is not None:
            self.record_group(key, replace(status, whole=False))

    def release(self, key: Key) -> None:
        self._given.pop(key, None)

    def next(self) -> list[Key]:
        """Return the groups that may start now, at most one for each free slot. If no slot is free, return at most one
        group, which is stuck and already has a slot (see `_stale`). The namespace with the fewest upgrading groups
        comes first. Ties are resolved by name, starting after the namespace of the last slot. Late namespaces come
        last."""
        if self.bound == 0:
            return []
        rollouts, free = self._open(), self.bound - len(self._taken())
        late = set[str]().union(*(rollout.late_namespaces for rollout in rollouts))
        begun = Counter(namespace for namespace, _ in self._rolling | self._given.keys())
        ranks = dict[Key, tuple[bool, int, bool]]()
        for rollout in rollouts:
            most = free + len(self._given)
            for key in rollout.ready(most, force=self.force) if free > 0 else self._stale(rollout):
                if key not in self._given and key not in ranks:
                    ranks[key] = (key[0] in late, begun[key[0]], key[0] <= self._last)
                    begun[key[0]] += 1
        return sorted(ranks, key=ranks.__getitem__)[: max(free, 1)]

    def expire(self, now: float) -> list[tuple[Key, str]]:
        """Mark as late the holds that have lasted too long, so that other groups no longer wait for them. `now`:
        monotonic seconds. Return each new late hold as a pair: the group, and the rollout or slot that it held up."""
        if self.deadline_s == 0:
            return []
        rollouts, free = self._open(), len(self._taken()) < self.bound
        holds = set[Hold]().union(*(rollout.holds(free=free) for rollout in rollouts))
        holds |= {("", key, str(self._statuses[key].upgrade)) for key in self._rolling}
        self._since = {hold: self._since.get(hold, now) for hold in holds}
        before, self._late = self._late, {hold for hold, since in self._since.items() if now - since >= self.deadline_s}
        self._late_places = {key for what, key, _ in self._late if not what}
        for rollout in rollouts:
            rollout.late = frozenset(hold for hold in self._late if hold[0] == rollout.what)
            rollout.late_namespaces |= {namespace for _, (namespace, _), _ in rollout.late}
        return sorted({(key, what or "a slot") for what, key, _ in self._late - before})

    def counts(self) -> dict[str, int]:
        """Numbers of groups by state. A group that waits for both its image and its connection counts twice."""
        rollouts = self._open()
        waiting, failed = (sum(map(len, each)) for each in zip(*((c.waiting, c.failed) for c in rollouts), strict=True))
        return {"waiting": waiting, "rolling": len(self._taken()), "failed": failed}

    def _open(self) -> list[UpgradeRollout]:
        return [self._images, *(self._connections[cluster] for cluster in sorted(self._busy))]

    def _track(self, cluster: Key) -> None:
        """Update the set of the few KafkaClusters with waiting or failed groups. Other methods visit only these
        KafkaClusters."""
        rollout = self._connections.get(cluster)
        self._busy.discard(cluster)
        if rollout is not None and (rollout.waiting or rollout.failed):
            self._busy.add(cluster)

    def _taken(self) -> set[Key]:
        return (self._rolling - self._late_places) | self._given.keys()

    def _obstacle(self, rollout: UpgradeRollout, key: Key) -> Problem | None:
        stopped_by = None if self.force else rollout.stopped_by(key[0])
        if stopped_by is not None:
            return _stopped(rollout, stopped_by)
        leader = None if self.force else rollout.leader(key[0])
        if leader is not None and not rollout.leads(key) and self._stale(rollout) != [key]:
            message = f"{rollout.what} is rolled out to canaries first: this group waits for {'/'.join(leader)}"
            return Problem(conditions.CANARY_RUNNING, message)
        taken = self._taken()
        if key not in taken and len(taken) >= self.bound:
            message = (
                f"{rollout.what} is rolled out to at most {self.bound} groups at the same time: this group waits for "
                "a slot"
            )
            return Problem(conditions.WAITING_FOR_WAVE, message)
        return None

    def _stale(self, rollout: UpgradeRollout) -> list[Key]:
        """Return the group that may start although groups that are stuck in an older upgrade hold all slots; empty
        without such a group. This resolves a deadlock: the stuck groups may need the new change, and the canaries of
        the new change wait for the slots of the stuck groups."""
        if rollout.rolls or len(self._taken()) < self.bound:
            return []
        stuck = (key for key in self._rolling if _has(rollout.waiting, key))
        return sorted(key for key in stuck if self.force or rollout.stopped_by(key[0]) is None)[:1]

    def _unable(self, key: Key, status: RolloutStatus) -> Problem | None:
        """The reason why a group gets no upgrade now: it has an old image or connection but cannot upgrade yet, or its
        failure stops a rollout."""
        stopped = next((rollout for rollout in self._open() if _has(rollout.failed, key)), None)
        if stopped is not None and (self.force or (stopped.what, key, FAILED) in stopped.late):
            message = f"{stopped.what} failed in this group: see the condition Progressing. {stopped.remedy}"
            return Problem(conditions.UPGRADE_STOPPED, message)
        if stopped is not None:
            return _stopped(stopped, key)
        if status.image in (None, self.image) and not status.differs_from(self._digests.get(status.cluster)):
            return None
        message = (
            "the group upgrades once its newest revision is Complete, its workers serve, Kafka answers, and it is "
            "neither paused nor suspended. While no worker is ready, the group gets a changed connection immediately, "
            "and a changed worker image if its pods keep dying or its revision is refused. spec.image can be set at "
            "any time"
        )
        return Problem(conditions.WAITING_FOR_FLEET, message)

    def _enter_connection(self, key: Key, status: RolloutStatus) -> None:
        digest = self._digests.get(status.cluster)
        if digest is None:
            return
        arrived = status.upgrade is not None and status.upgrade.connection == digest
        waits = status.waits_for_connection(digest)
        self._connections[status.cluster].enter(key, status, arrived=arrived, waits=waits)

    def _leave(self, key: Key, status: RolloutStatus) -> None:
        del self._statuses[key]
        self._rolling.discard(key)
        alike = self._of_cluster[status.cluster]
        alike.discard(key)
        if not alike:
            del self._of_cluster[status.cluster]
        self._images.leave(key)
        if status.cluster in self._connections:
            self._connections[status.cluster].leave(key)
        self._track(status.cluster)


def _first_of_each(keys: list[Key], most: int) -> Iterator[Key]:
    at = 0
    while at < len(keys):
        end = _end(keys, keys[at][0])
        yield from keys[at : min(at + most, end)]
        at = end


def _end(keys: list[Key], namespace: str) -> int:
    return bisect_left(keys, (namespace + "\0", ""))  # before any later namespace, because names contain no NUL


def _has(keys: list[Key], key: Key) -> bool:
    position = bisect_left(keys, key)
    return position < len(keys) and keys[position] == key


def _stopped(rollout: UpgradeRollout, failed: Key) -> Problem:
    where = f" in namespace {failed[0]}" if failed[0] in rollout.late_namespaces else ""
    message = (
        f"{rollout.what} is rolled out to no further group{where}, because it failed in ConsumerGroup "
        f"{'/'.join(failed)}: see the condition Progressing there. {rollout.remedy}"
    )
    return Problem(conditions.UPGRADE_STOPPED, message)
