"""The observations of one part's groups, from the answers of a look and what the look before made of them. Pure but for
the part's memory.

Most groups are as they were. One whose answers are the very objects of the look before is not folded again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fleet_operator.observe import folding
from fleet_operator.observe.flow import Spans
from fleet_operator.observe.folding import GroupFacts
from fleet_operator.observe.interests import GroupInterest
from fleet_operator.observe.look_memory import PartMemory
from fleet_operator.planning.observation import GroupObservation, TopicObservation


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFolds:
    """Inputs of the observations; `last` has the newest ones by group, perhaps of a glance, `now` is epoch seconds."""

    interests: Mapping[str, GroupInterest]
    last: Mapping[str, GroupObservation]
    part: PartMemory
    facts: Mapping[str, GroupFacts]
    topics: Mapping[str, TopicObservation]
    now: float

    def quiet(self) -> set[str]:
        """The groups in whose flow nothing waits, and of whose flow all answers are those of the look before."""
        return {group_id for group_id in self.interests if self._is_quiet(group_id)}

    def fold(self, flows: Mapping[str, Spans]) -> dict[str, GroupObservation]:
        """The observation of each group; `flows` are those that are not quiet. Remembered for the next look."""
        groups = {group_id: self._group(group_id, flows) for group_id in self.interests}
        self.part.facts, self.part.groups = self.facts, groups
        return groups

    def _is_quiet(self, group_id: str) -> bool:
        last, retry = self.last.get(group_id), self.interests[group_id].retry
        if last is None or retry is None or last.retry is None or last.retry.error or last.retry.waiting != 0:
            return False
        before = self.part.facts.get(retry.group_id)
        if before is None or not self.facts[retry.group_id].as_before(before):
            return False
        return self.part.flow.is_quiet(self.interests[group_id], last.retry, self.topics, self.now)

    def _group(self, group_id: str, flows: Mapping[str, Spans]) -> GroupObservation:
        """The main group, and beside it its flow: one of them may be known while the other is not."""
        last, interest = self.last.get(group_id), self.interests[group_id]
        if last is not None and self._is_as_before(last):
            folded = replace(last, observed_at=self.now)
        else:
            folded = folding.fold_group(self.facts[group_id], last, self.now)
        if interest.retry is None:
            return replace(folded, retry=None) if folded.retry is not None else folded
        if group_id not in flows:
            assert last is not None, "a quiet flow was observed before"
            assert last.retry is not None, "a quiet flow was observed before"
            retry = replace(last.retry, observed_at=self.now)
        else:
            answers = self.facts[interest.retry.group_id]
            retry = self.part.flow.fold(interest, answers, self.topics, flows[group_id], self.now)
        return replace(folded, retry=replace(retry, found_delays=self.part.flow.found_delays.get(group_id)))

    def _is_as_before(self, last: GroupObservation) -> bool:
        """True if the last observation was folded from these very answers, and no glance has changed it since.

        What a glance saw between two looks with the same answers has passed: a member that came and went again.
        """
        before = self.part.facts.get(last.group_id)
        if before is None or last.error is not None or last is not self.part.groups.get(last.group_id):
            return False
        if last.missing_ends:
            return False  # in doubt only for a time
        answers = self.facts[last.group_id]
        return answers.as_before(before) and folding.beyond_end(answers, last) == last.beyond_end
