"""A listener of the observers, and their threads."""

from __future__ import annotations

import threading

from fleet_operator.planning.observation import ClusterObservation

Key = tuple[str, str]


class Ear:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.clusters: list[Key] = []
        self.groups: list[tuple[Key, bool]] = []
        self.polls: list[Key] = []

    def cluster_changed(self, cluster: Key) -> None:
        self.clusters.append(cluster)

    def group_changed(self, group: Key, *, urgent: bool) -> None:
        self.groups.append((group, urgent))

    def cluster_polled(self, cluster: Key, observation: ClusterObservation, seconds: float) -> None:
        assert seconds >= 0.0
        self.polls.append(cluster)

    def clear(self) -> None:
        self.clusters.clear()
        self.groups.clear()
        self.polls.clear()


def observer_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("observer-")]
