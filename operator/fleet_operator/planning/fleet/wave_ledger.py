"""The ledger of upgrades in waves: all groups' standings, and whose turn it is.

Each change that comes from outside the groups is a campaign of its own: the operator's worker image, and the connection
of each KafkaCluster. Canaries go first: the groups with the label, else the first one by name. When all of them have
arrived, the others follow. A group that fails stops its campaign, for all that have not begun.

Every tenant has such groups, and may have many. So whoever holds up others, as a canary, in a place or by a failure,
does so for a limited time. A namespace of which a group was late goes last in that campaign and holds up no other one
again. Its groups still wait for one another, and for a canary among themselves: the change may fail in all of them.
Namespaces take turns, and an administrator may have nothing held up but by the bound.

The number of groups on their way is bounded over all campaigns. It is counted from the states, plus what was given
out and does not show in them yet, so that neither two reconciles at once nor the next operator exceed it.

A note costs what one change of one group costs, whatever the number of groups; to name the next ones, a look at each
namespace.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Final

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.planning.fleet.waves import NO_TURN, Key, Standing, Turn
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.group import Phase, UpgradeState

IMAGE_REMEDY: Final = (
    "It goes on when that group runs the image after all, has one of its own (spec.image), or is deleted; another "
    "worker image of the operator starts again"
)
CONNECTION_REMEDY: Final = (
    "It goes on when that group runs with the connection after all, or is deleted; another edit of the KafkaCluster "
    "starts again"
)


WAITS: Final = "waits"
ROLLS: Final = "rolls"
FAILED: Final = "failed"
Hold = tuple[str, Key, str]
"""Something for which groups wait: the campaign (empty for a place), the group that holds them up, and by what."""


@dataclass(slots=True)
class Campaign:
    """One change on its way through the groups that it concerns, each list in the order of names.

    `waiting` have not begun; `canaries` are those of them with the label. `rolling`, `complete` and `failed` have.
    `what` and `remedy` are for messages. `late` has what has lasted too long to hold up anybody. `late_namespaces`
    are those where that was ever so: they hold up themselves alone.
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

    def enter(self, key: Key, standing: Standing, *, arrived: bool, waits: bool) -> None:
        """Enter a group; `arrived` says that its last upgrade is this very one."""
        if waits:
            insort(self.waiting, key)
            if standing.canary:
                insort(self.canaries, key)
        upgrade = standing.upgrade
        if not arrived or upgrade is None:
            return
        if upgrade.phase is Phase.FAILED:
            insort(self.failed, key)
        elif upgrade.phase is Phase.COMPLETE:
            insort(self.complete, key)
        elif standing.rolls:
            insort(self.rolling, key)
            if standing.canary:
                insort(self.rolling_canaries, key)

    def leave(self, key: Key) -> None:
        for each in (self.waiting, self.canaries, self.rolling, self.rolling_canaries, self.complete, self.failed):
            if _has(each, key):
                del each[bisect_left(each, key)]

    def leads(self, key: Key) -> bool:
        """True if a group that waits need not wait for a canary."""
        first = self._first(key[0])
        return first is None or _has(first, key)

    @property
    def rolls(self) -> bool:
        """True if groups are on their way for which others wait."""
        return any(self._holding(self.rolling, ROLLS, ""))

    def stopped_by(self, namespace: str) -> Key | None:
        """The group that failed and stops those of a namespace."""
        return next(self._holding(self.failed, FAILED, namespace), None)

    def leader(self, namespace: str) -> Key | None:
        """The first of the groups that those of a namespace wait for."""
        canaries = (self.rolling_canaries, ROLLS), (self.canaries, WAITS)
        others = (self._counted(self.rolling, namespace), ROLLS), (self._counted(self.waiting, namespace), WAITS)
        return next(chain.from_iterable(self._holding(keys, by, namespace) for keys, by in (*canaries, *others)), None)

    def ready(self, most: int, *, force: bool) -> Iterator[Key]:
        """The first groups of each namespace that nothing holds up but the bound."""
        for view in ("", *self.late_namespaces):
            if force or self.stopped_by(view) is None:
                first = None if force else self._first(view)
                keys = _first_of_each(self._counted(self.waiting, view), most) if first is None else first[:most]
                yield from (key for key in keys if force or view or key[0] not in self.late_namespaces)

    def holds(self, *, free: bool) -> set[Hold]:
        """All that holds up others, whether late or not; who waits does so by itself only if it could begin."""
        able = [view for view in ("", *self.late_namespaces) if free and self.stopped_by(view) is None]
        waits = {(self.what, key, WAITS) for view in able for key in self._first(view) or ()}
        waits |= {hold for hold in self.late if hold[2] == WAITS and _has(self.waiting, hold[1])}
        rolls = {(self.what, key, ROLLS) for key in self.rolling}
        return waits | rolls | {(self.what, key, FAILED) for key in self.failed}

    def _first(self, namespace: str) -> list[Key] | None:
        """The groups that go before the others of a namespace; None once these need not wait for a canary."""
        canaries = list(self._holding(self.canaries, WAITS, namespace))
        if canaries or any(self._holding(self.rolling_canaries, ROLLS, namespace)):
            return canaries
        if self._counted(self.complete, namespace):
            return None
        if any(self._holding(self._counted(self.rolling, namespace), ROLLS, namespace)):
            return []
        return list(islice(self._holding(self._counted(self.waiting, namespace), WAITS, namespace), 1))

    def _holding(self, keys: list[Key], by: str, namespace: str) -> Iterator[Key]:
        """Those of some groups that hold up a namespace."""
        for key in keys:
            if (key[0] == namespace or key[0] not in self.late_namespaces) and (self.what, key, by) not in self.late:
                yield key

    def _counted(self, keys: list[Key], namespace: str) -> list[Key]:
        """Those of some groups that count for a namespace where no canary is labelled: once it was late, its own."""
        return _of(keys, namespace) if namespace in self.late_namespaces else keys


@dataclass(slots=True)
class WaveLedger:
    """Standings of all groups under one operator whose worker image is `image`; at most `bound` go over at once.

    Nothing holds up others for longer than `deadline_s` (0: for good), and with `force` nothing but the bound does.

    Pure: it is told of objects and asked for turns, by one caller at a time.
    """

    bound: int
    image: str
    deadline_s: float = 0.0
    force: bool = False
    _since: dict[Hold, float] = field(default_factory=dict)  # monotonic
    _late: set[Hold] = field(default_factory=set)
    _late_places: set[Key] = field(default_factory=set)
    _last: str = ""  # the namespace of the last turn
    _standings: dict[Key, Standing] = field(default_factory=dict)
    _rolling: set[Key] = field(default_factory=set)
    _given: dict[Key, Turn] = field(default_factory=dict)  # turns that do not show in a state yet
    _images: Campaign = field(default_factory=lambda: Campaign("the operator's worker image", IMAGE_REMEDY))
    _connections: dict[Key, Campaign] = field(default_factory=dict)
    _digests: dict[Key, str] = field(default_factory=dict)  # of the connections of KafkaClusters
    _of_cluster: dict[Key, set[Key]] = field(default_factory=dict)
    _busy: set[Key] = field(default_factory=set)  # KafkaClusters whose campaign has groups that wait, or failed

    def note(self, key: Key, standing: Standing | None) -> bool:
        """Take a group's standing down, None for one that is gone; True if it is another one than before."""
        before = self._standings.get(key)
        if standing == before:
            return False
        if before is not None:
            self._leave(key, before)
        if standing is None:
            self._given.pop(key, None)
            return True
        self._standings[key] = standing
        self._of_cluster.setdefault(standing.cluster, set()).add(key)
        if standing.rolls:
            self._rolling.add(key)
        self._enter(key, standing)
        if key in self._given and not self._is_open(standing, self._given[key]):
            del self._given[key]
        return True

    def note_cluster(self, cluster: Key, connection: str | None) -> bool:
        """Take a KafkaCluster's connection down, None while it is unknown; True if it is another one than before."""
        if self._digests.get(cluster) == connection:
            return False
        self._digests.pop(cluster, None)
        former = self._connections.pop(cluster, None)
        if former is not None:
            self._since = {hold: since for hold, since in self._since.items() if hold[0] != former.what}
        if connection is not None:
            self._digests[cluster] = connection
            self._connections[cluster] = Campaign(
                f"the changed connection of KafkaCluster {'/'.join(cluster)}", CONNECTION_REMEDY
            )
            for key in self._of_cluster.get(cluster, ()):
                self._enter_connection(key, self._standings[key])
        self._track(cluster)
        return True

    def turn(self, key: Key) -> Turn:
        """The turn of a group: all that it may take over now. One that brings something holds a place meanwhile."""
        standing = self._standings.get(key)
        if self.bound == 0:
            return NO_TURN
        if standing is None:
            return Turn(waves=True)
        if (alone := self.turn_alone(key)).begins:
            return alone
        connects = standing.waits_for_connection(self._digests.get(standing.cluster))
        pulls = standing.waits_for_image(self.image)
        if not (connects or pulls):
            return Turn(waves=True, wait=self._unable(key, standing))
        obstacle = self._obstacle(self._connections[standing.cluster], key) if connects else None
        if obstacle is not None:
            # A revision has one connection, so a new image waits for it too. The other way round it need not.
            return Turn(waves=True, wait=obstacle)
        held_back = self._obstacle(self._images, key) if pulls else None
        turn = Turn(waves=True, image=pulls and held_back is None, connection=connects, wait=held_back)
        if turn.begins:
            self._given[key], self._last = turn, key[0]
        return turn

    def is_behind(self, cluster: Key, state: UpgradeState) -> bool:
        """True if a group of this KafkaCluster has another image or connection than it could have."""
        image = state.source == "Operator" and state.image not in (None, self.image)
        return image or (state.connection is not None and self._digests.get(cluster) not in (None, state.connection))

    def turn_alone(self, key: Key) -> Turn:
        """The turn of a group whose fleet is down: no bound, canary or failure of another group holds it up."""
        standing = self._standings.get(key)
        if self.bound == 0 or standing is None:
            return NO_TURN
        return standing.turn_alone(self.image, self._digests.get(standing.cluster))

    def edited(self, key: Key) -> None:
        """Note that a group's spec has changed since it was noted: until it is noted again it is not whole."""
        standing = self._standings.get(key)
        if standing is not None:
            self.note(key, replace(standing, whole=False))

    def give_back(self, key: Key) -> None:
        """Take back a turn of which nothing was made."""
        self._given.pop(key, None)

    def next(self) -> list[Key]:
        """The groups whose turn has come, no more than there are places for.

        Namespaces take turns: first the one with the fewest groups on their way, of equal ones the next by name after
        the last turn. Those that were late come last.
        """
        if self.bound == 0:
            return []
        campaigns, free = self._open(), self.bound - len(self._taken())
        late = set[str]().union(*(campaign.late_namespaces for campaign in campaigns))
        begun = Counter(namespace for namespace, _ in self._rolling | self._given.keys())
        ranks = dict[Key, tuple[bool, int, bool]]()
        for campaign in campaigns:
            most = free + len(self._given)
            for key in campaign.ready(most, force=self.force) if free > 0 else self._stale(campaign):
                if key not in self._given and key not in ranks:
                    ranks[key] = (key[0] in late, begun[key[0]], key[0] <= self._last)
                    begun[key[0]] += 1
        return sorted(ranks, key=ranks.__getitem__)[: max(free, 1)]

    def expire(self, now: float) -> list[tuple[Key, str]]:
        """Let go of what has held up others for too long, by monotonic seconds of this process; returns what is new."""
        if self.deadline_s == 0:
            return []
        campaigns, free = self._open(), len(self._taken()) < self.bound
        holds = set[Hold]().union(*(campaign.holds(free=free) for campaign in campaigns))
        holds |= {("", key, str(self._standings[key].upgrade)) for key in self._rolling}
        self._since = {hold: self._since.get(hold, now) for hold in holds}
        before, self._late = self._late, {hold for hold, since in self._since.items() if now - since >= self.deadline_s}
        self._late_places = {key for what, key, _ in self._late if not what}
        for campaign in campaigns:
            campaign.late = frozenset(hold for hold in self._late if hold[0] == campaign.what)
            campaign.late_namespaces |= {namespace for _, (namespace, _), _ in campaign.late}
        return sorted({(key, what or "a place") for what, key, _ in self._late - before})

    def counts(self) -> dict[str, int]:
        """The number of groups that wait for their turn, are on their way, and have failed.

        One that waits for its image and for its connection counts twice.
        """
        campaigns = self._open()
        waiting, failed = (
            sum(map(len, each)) for each in zip(*((c.waiting, c.failed) for c in campaigns), strict=True)
        )
        return {"waiting": waiting, "rolling": len(self._taken()), "failed": failed}

    def _open(self) -> list[Campaign]:
        return [self._images, *(self._connections[cluster] for cluster in sorted(self._busy))]

    def _track(self, cluster: Key) -> None:
        """Know the few KafkaClusters whose groups are behind: a change must not cost a look at all of them."""
        campaign = self._connections.get(cluster)
        if campaign is not None and (campaign.waiting or campaign.failed):
            self._busy.add(cluster)
        else:
            self._busy.discard(cluster)

    def _taken(self) -> set[Key]:
        return (self._rolling - self._late_places) | self._given.keys()

    def _obstacle(self, campaign: Campaign, key: Key) -> Problem | None:
        """The reason why a group that waits may not begin, or None."""
        stopped_by = None if self.force else campaign.stopped_by(key[0])
        if stopped_by is not None:
            return _stopped(campaign, stopped_by)
        leader = None if self.force else campaign.leader(key[0])
        if leader is not None and not campaign.leads(key) and self._stale(campaign) != [key]:
            message = f"{campaign.what} goes to canaries first: this group waits for {'/'.join(leader)}"
            return Problem(conditions.CANARY_RUNNING, message)
        taken = self._taken()
        if key not in taken and len(taken) >= self.bound:
            message = f"{campaign.what} goes to at most {self.bound} groups at once: this group waits for its turn"
            return Problem(conditions.WAITING_FOR_WAVE, message)
        return None

    def _stale(self, campaign: Campaign) -> list[Key]:
        """The group that goes first where groups hold all places that are stuck on the way to something older.

        They may wait for the very change that would help them, while the canaries wait for their places.
        """
        if campaign.rolls or len(self._taken()) < self.bound:
            return []
        stuck = (key for key in self._rolling if _has(campaign.waiting, key))
        return sorted(key for key in stuck if self.force or campaign.stopped_by(key[0]) is None)[:1]

    def _unable(self, key: Key, standing: Standing) -> Problem | None:
        """The reason of a group that takes part in no campaign although it is behind, or because of which one stops."""
        failed = (campaign for campaign in self._open() if _has(campaign.failed, key))
        stopped = next(failed, None)
        if stopped is not None and (self.force or (stopped.what, key, FAILED) in stopped.late):
            message = f"{stopped.what} failed in this group: see Progressing. {stopped.remedy}"
            return Problem(conditions.UPGRADE_STOPPED, message)
        if stopped is not None:
            return _stopped(stopped, key)
        if standing.image in (None, self.image) and not standing.differs_from(self._digests.get(standing.cluster)):
            return None
        message = (
            "the group goes over once its newest revision is Complete, it serves, Kafka answers, and it is neither "
            "paused nor suspended. While no worker is ready it takes a changed connection at once, and a worker image "
            "when its pods keep dying or its revision is refused; spec.image takes one at any time"
        )
        return Problem(conditions.WAITING_FOR_FLEET, message)

    def _enter(self, key: Key, standing: Standing) -> None:
        arrived = standing.upgrade is not None and standing.upgrade.image == self.image == standing.image
        self._images.enter(key, standing, arrived=arrived, waits=standing.waits_for_image(self.image))
        self._enter_connection(key, standing)
        self._track(standing.cluster)

    def _enter_connection(self, key: Key, standing: Standing) -> None:
        digest = self._digests.get(standing.cluster)
        if digest is None:
            return
        arrived = standing.upgrade is not None and standing.upgrade.connection == digest
        waits = standing.waits_for_connection(digest)
        self._connections[standing.cluster].enter(key, standing, arrived=arrived, waits=waits)

    def _leave(self, key: Key, standing: Standing) -> None:
        del self._standings[key]
        self._rolling.discard(key)
        alike = self._of_cluster[standing.cluster]
        alike.discard(key)
        if not alike:
            del self._of_cluster[standing.cluster]
        self._images.leave(key)
        if standing.cluster in self._connections:
            self._connections[standing.cluster].leave(key)
        self._track(standing.cluster)

    def _is_open(self, standing: Standing, given: Turn) -> bool:
        """True if a given turn does not show yet, and may still be taken."""
        connects = standing.waits_for_connection(self._digests.get(standing.cluster))
        return (given.image and standing.waits_for_image(self.image)) or (given.connection and connects)


def _of(keys: list[Key], namespace: str) -> list[Key]:
    return keys[bisect_left(keys, (namespace, "")) : _end(keys, namespace)]


def _first_of_each(keys: list[Key], most: int) -> Iterator[Key]:
    """The first groups of each namespace."""
    at = 0
    while at < len(keys):
        end = _end(keys, keys[at][0])
        yield from keys[at : min(at + most, end)]
        at = end


def _end(keys: list[Key], namespace: str) -> int:
    return bisect_left(keys, (namespace + "\0", ""))  # before the next namespace, whose name has no NUL


def _has(keys: list[Key], key: Key) -> bool:
    position = bisect_left(keys, key)
    return position < len(keys) and keys[position] == key


def _stopped(campaign: Campaign, failed: Key) -> Problem:
    where = f" of namespace {failed[0]}" if failed[0] in campaign.late_namespaces else ""
    message = (
        f"{campaign.what} goes to no further group{where}, because it failed in ConsumerGroup {'/'.join(failed)}: "
        f"see Progressing there. {campaign.remedy}"
    )
    return Problem(conditions.UPGRADE_STOPPED, message)
