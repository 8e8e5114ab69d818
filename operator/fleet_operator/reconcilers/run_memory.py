"""The memory of runs, as the reconcilers use it: a run is decided about by what is remembered of it, not by its status.

It stands in the run's own OperatorState; its end stands in that of its ConsumerGroup as well, which outlives the run's
object. Both are read live before something is done that cannot be taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

from fleet_operator.api.v1alpha1.conditions import STATE_UNREADABLE
from fleet_operator.api.v1alpha1.model import FINAL_PHASES, RunResource
from fleet_operator.clients.kinds import CONSUMER_GROUP, OPERATOR_STATE, JsonObject, Kind
from fleet_operator.clients.kube import KubeConflictError
from fleet_operator.planning import times
from fleet_operator.planning.run import LASTING_PHASES, RunDecision
from fleet_operator.planning.state.document import UnreadableStateError, read_state
from fleet_operator.planning.state.runs import RunEntry, RunsState, RunState, digest_of, entry_of
from fleet_operator.reconcilers.context import Context
from fleet_operator.reconcilers.routing import RUNS
from fleet_operator.reconcilers.states import state_name
from fleet_operator.runtime.cache import Key

R = TypeVar("R", bound=RunResource)


class RunMemory:
    """The memory of the runs of one kind.

    `remembered` are the fields of their statuses that decide, `counted` those that are shown when a run has ended.
    """

    def __init__(self, context: Context, remembered: Collection[str], counted: Collection[str]) -> None:
        self._context = context
        self._remembered = frozenset(remembered)
        self._known = self._remembered.union(counted, ("conditions",))

    def recall(self, body: JsonObject, run: R) -> tuple[R, RunState, RunState]:
        """A run with what is remembered in the place of what its status says, its state, and the state as it is stored.

        An end that is remembered for its group is the end of this run as well. Raises UnreadableStateError.
        """
        state = stored = self._context.states.read(body, RunState)
        if state.digest != digest_of(run):
            state = RunState()  # a namesake's, which did something else
        entry = find_entry(self._context, run)
        # Of a run that was begun again after it had failed the group remembers the failure until the next end.
        if not state.is_final and entry is not None and entry.is_final and state.retries <= entry.retries:
            facts = {**state.facts, "phase": entry.phase, "finishedAt": entry.at}
            state = replace(state, facts=facts, reason=entry.reason, message=entry.message)
        # Of a run that came to its end under its own state, that has all that is shown.
        status = {} if "conditions" in state.facts else run.status
        shown = {name: value for name, value in status.items() if name not in self._remembered}
        known = {name: value for name, value in state.facts.items() if name in self._known}
        return run.model_copy(update={"status": {**shown, **known}}), state, stored

    def pick(self, status: JsonObject, decision: RunDecision) -> JsonObject:
        """The fields of a status that are remembered of its decision."""
        names = self._known if decision.is_final else self._remembered
        return {name: value for name, value in status.items() if name in names}

    async def refresh(self, body: JsonObject, group: Key) -> None:
        """Read the states live that decide about a run. Raises KubeError."""
        owner = self._context.store.get(CONSUMER_GROUP, group)
        for each in (body, *([owner] if owner is not None else ())):
            await self._context.states.refresh(each)

    async def note(
        self, body: JsonObject, run: RunResource, facts: Mapping[str, Any], decision: RunDecision, before: RunState
    ) -> None:
        """Remember how far a run is, before its status is written; `before` is its stored state when it was decided.

        Raises KubeError and StateTakenError.
        """
        reason, message = (decision.reason, decision.message) if decision.is_final else ("", "")
        state = RunState(digest=digest_of(run), facts=facts, reason=reason, message=message)
        if state != before or not self._context.states.is_own(body):
            await self._context.states.save(body, state, before=before)
        if decision.is_lasting:
            await self._note_entry(run, state)

    async def keep_end(self, body: JsonObject, run: RunResource, state: RunState, *, leaves: bool = False) -> None:
        """Have the group remember an end that only the run's own state has, and that state an end that only the group
        has. A run that `leaves` takes its own state along. Raises KubeError and StateTakenError."""
        if not self._context.states.is_own(body):
            stored = self._context.states.read(body, RunState)
            await self._context.states.save(body, replace(state, digest=digest_of(run)), before=stored)
        group = self._context.store.get(CONSUMER_GROUP, run.group_key)
        if group is None or state.facts["phase"] not in LASTING_PHASES:
            return
        known = self._context.states.read(group, RunsState)
        if leaves or not known.is_full(run, self._lives_in(run.group_key)):
            await self._note_entry(run, state)

    def _lives_in(self, group: Key) -> Callable[[RunEntry], bool]:
        """A test if the object of an entry exists in its group. A group may have thousands of runs, and its state names
        few of them."""
        caches = {kind.kind: self._context.store.cache(kind) for kind in RUNS}

        def lives(entry: RunEntry) -> bool:
            cache = caches.get(entry.kind)
            return cache is not None and cache.has((group[0], entry.name), group)

        return lives

    async def _note_entry(self, run: RunResource, state: RunState) -> None:
        """Have the group remember a run; without a group there is nobody to do it."""
        store, key = self._context.store, run.group_key
        group = store.get(CONSUMER_GROUP, key)
        if group is None or "deletionTimestamp" in group["metadata"]:
            return
        known, phase = self._context.states.read(group, RunsState), state.facts["phase"]
        found = known.find(run)
        if found is not None and (found.phase, found.retries) == (phase, state.retries):
            return
        if found is not None and found.is_final and phase not in FINAL_PHASES:
            raise KubeConflictError(f"{found.kind} {found.name} was ended by another process", status=409)
        at = str(state.facts.get("finishedAt") or times.to_text(self._context.clock.wall()))
        said = {"reason": state.reason, "message": state.message, "at": at}
        entry = entry_of(run, phase=phase, retries=state.retries, **said)
        await self._context.states.save(group, known.with_entry(entry, self._lives_in(key)), before=known)


def find_entry(context: Context, run: RunResource) -> RunEntry | None:
    """The entry of a run in the state of its group. Raises UnreadableStateError."""
    group = context.store.get(CONSUMER_GROUP, run.group_key)
    return None if group is None else context.states.read(group, RunsState).find(run)


class RunSummary(NamedTuple):
    """The facts of a run's object that decide about the turns of a group's runs; the oldest sorts first."""

    created: str
    name: str
    suspended: bool
    dry_run: bool
    deleting: bool


def summary_of_run(body: JsonObject) -> RunSummary:
    metadata, spec = body["metadata"], body["spec"]
    return RunSummary(
        created=metadata.get("creationTimestamp") or "",
        name=metadata["name"],
        suspended=bool(spec.get("suspend")),
        dry_run=bool(spec.get("dryRun")),
        deleting="deletionTimestamp" in metadata,
    )


OUTLINE: Final = ("phase", "reason", "message", "finishedAt", "failedTopicId", "redrivenTo")


def outline_of(state: JsonObject) -> Mapping[str, Any]:
    """The summary of a run's OperatorState: what the others of its group have to know; of an unreadable one that it is
    unreadable."""
    content = state.get("data")
    try:
        known = read_state(RunState, content if isinstance(content, dict) else {}, state["metadata"]["name"]).facts
    except UnreadableStateError as error:
        return {"phase": "Unknown", "reason": error.problem.reason, "message": error.problem.message}
    return {name: known[name] for name in OUTLINE if isinstance(known.get(name), str | int)}


def runs_of(context: Context, kind: Kind, group: Key) -> list[tuple[RunSummary, Mapping[str, Any]]]:
    """The runs of a kind that a group has, the oldest first, each with the outline of what is remembered of it.

    Anybody may create any number of them, and each reconcile of any of them looks at all.
    """
    states, found = context.store.cache(OPERATOR_STATE), context.store.cache(kind).summaries_having(group)
    known = [(run, states.summary_of((key[0], state_name(kind, key[1]))) or {}) for key, run in found]
    unreadable = [place for place, (_, outline) in enumerate(known) if outline.get("reason") == STATE_UNREADABLE]
    ends = _ends_by_name(context, kind, group) if unreadable else {}
    for place in unreadable:
        run, outline = known[place]
        known[place] = run, ends.get(run.name, outline)
    return sorted(known, key=lambda each: each[0])


def _ends_by_name(context: Context, kind: Kind, group: Key) -> dict[str, Mapping[str, Any]]:
    """The outlines of the runs of a kind whose end their group remembers."""
    body = context.store.get(CONSUMER_GROUP, group)
    entries = context.states.read(body, RunsState).runs if body is not None else ()
    return {each.name: {"phase": each.phase} for each in entries if each.kind == kind.kind and each.is_final}
