"""Our assignors in a separate process, timed around the public `assign`; the counterpart of JavaAssignorTimes.

Prints one line for each situation, "name wall-seconds cpu-seconds", and the process's peak memory in MiB last.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

from bench.measuring import peak_mib
from fleet_consumer.assignors import Assignment, Assignor, ClusterView, Subscription, load


def subscriptions(
    assignor: Assignor, wanted: Mapping[str, Sequence[str]], before: Mapping[str, Assignment]
) -> dict[str, Subscription]:
    """The members' subscriptions after `before`: eager ones with user data, cooperative ones with owned partitions."""
    joined = {}
    for member, topics in wanted.items():
        had = before.get(member)
        if had is None:
            joined[member] = Subscription(topics)
        elif assignor.name == "sticky":
            author = load("sticky")
            author.on_assignment(had, 1)
            joined[member] = Subscription(topics, user_data=author.subscription_user_data(topics))
        else:
            joined[member] = Subscription(topics, owned=had.partitions, generation=1)
    return joined


def timed(
    situation: str,
    assignor: Assignor,
    cluster: ClusterView,
    wanted: Mapping[str, Sequence[str]],
    before: Mapping[str, Assignment],
) -> dict[str, Assignment]:
    """Time one plan, and print its line."""
    joined = subscriptions(assignor, wanted, before)
    cpu, wall = time.process_time(), time.perf_counter()
    plan = assignor.assign(cluster, joined)
    print(situation, time.perf_counter() - wall, time.process_time() - cpu, flush=True)
    return plan


def main(name: str, topic_count: int, partitions: int, member_count: int, divergent: bool) -> None:
    """Time a fresh plan, and one after a leave or a join; with `divergent` one member subscribes to one topic only."""
    assignor = load(name)
    topics = [f"topic-{number:04}" for number in range(topic_count)]
    cluster = ClusterView(dict.fromkeys(topics, partitions))
    wanted = {f"member-{number:05}": topics for number in range(member_count)}
    if divergent:
        wanted[f"member-{member_count - 1:05}"] = topics[:1]
    fresh = timed("fresh", assignor, cluster, wanted, {})
    if "sticky" in name:
        stayed = {member: each for member, each in wanted.items() if member != "member-00007"}
        timed("leave", assignor, cluster, stayed, fresh)
        timed("join", assignor, cluster, wanted | {"member-00007-new": topics}, fresh)
    print("peak", peak_mib(), 0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "true")
