"""Generates the page docs/conditions.md: a row for each word that a status or an Event can show."""

from collections.abc import Mapping, Sequence
from typing import Final

from fleet_operator.api.v1alpha1.explanations import Explanation
from pages.markdown import code, escaped, headings, table

HEAD: Final = """\
# Conditions by reason

<!-- Generated from operator/fleet_operator/api/v1alpha1/explanations.toml by `make pages`. -->

This page has a row for each word that a status, an Event or a worker's report can show: types and reasons of
conditions, limits of scaling, phases and states. Search the page for the word. The message next to the word in the
status or Event names the object, the observed problem and the remedy.

- In the commands, `NAME` is the name of the object, and `POD` is a pod that the message names. Add `--namespace` if
  the object is in another namespace than your context. For the operator's log, use the namespace of your
  installation.
- No command on this page changes anything.
- This command shows the state of all groups: `kubectl get consumergroups --all-namespaces -o wide`. Fix the reason
  of `Degraded` first, because it is the first cause.
- This page has no rows for Kafka's error names, such as NotController, which brokers return: the message has the
  details.
"""
GROUPS: Final[Mapping[str, tuple[str, str]]] = {
    "loss": ("Records and offsets at risk", "Act on these reasons first, because waiting makes the loss worse."),
    "cluster": (
        "Kafka does not answer, or refuses",
        "Reasons of a KafkaCluster, and of all its groups. Running workers stay, and no fleet shrinks.",
    ),
    "topics": ("Topics", "Reasons of `Degraded`, `TopicsReady` and `RetriesKept`."),
    "workers": ("Workers fail, or records wait", "Reasons of `Ready`, `Degraded` and `Stuck`."),
    "rollout": (
        "A revision is checked, waits or is refused",
        "Reasons of `Ready`, `Progressing`, `Stalled` and `Degraded`. The last good revision keeps running.",
    ),
    "spec": ("The spec, or an object that it names", "Only an edit of an object resolves these reasons."),
    "unknown": (
        "Facts that are unknown",
        "While a fact is unknown, its last known value is kept, and nothing shrinks.",
    ),
    "type": ("Types of conditions", "The types, each with its meaning; the reasons are in the other tables."),
    "limit": (
        "Scaling and pauses",
        "Values of `status.limit`, and reasons of `ScalingActive`, `ScalingLimited` and `Paused`.",
    ),
    "upgrade": ("Upgrades", "Reasons of `UpgradeAvailable`, and phases of an upgrade."),
    "offsetstopic": (
        "Kafka's offsets topic",
        "Reasons of `OffsetsTopicSized`, `CoordinatorsAvailable` and `CoordinatorsBalanced` of a KafkaCluster.",
    ),
    "run": ("Redrives and OffsetResets", "Reasons of these runs. Backfills share several of the reasons."),
    "backfill": ("Backfills", "Reasons of Backfills, and reasons that the drivers of Backfills report."),
    "worker": (
        "What workers and checks report",
        "Words in the messages of `Degraded` and `Stuck`, in the results of checks, and on a worker's page `/member`.",
    ),
    "net": ("Connections", "Connection errors in messages, logs and metrics of workers and the operator."),
    "pod": ("Kubernetes' words about pods", "Reasons of the kubelet and the scheduler, as messages repeat them."),
    "state": ("States and phases", "States of Kafka groups, members and skipped records, and phases of runs."),
    "failed": (
        "Reasons in the failed topic",
        "Values of `status.retry.failedReasons`. Run the commands in a worker's pod: `kubectl exec POD -- COMMAND`.",
    ),
    "event": ("Events", "Reasons that only Events have, not conditions."),
    "normal": ("Nothing to do", "Reasons of conditions without a problem."),
}
"""Title and introduction of each group of explanations, keyed by group."""


def conditions_page(groups: Mapping[str, Sequence[Explanation]], pages: Mapping[str, str]) -> str:
    """Return the page. `pages`: contents of the pages to which the rows link, keyed by file name."""
    titles = {name: headings(text) for name, text in pages.items()}
    lines = [HEAD]
    for group, explanations in groups.items():
        title, introduction = GROUPS[group]
        rows = [_row(each, titles) for each in explanations]
        lines += [f"## {title}", "", introduction, "", *table(("Word", "Meaning", "First command"), rows), ""]
    return "\n".join(lines)


def _row(explanation: Explanation, titles: Mapping[str, Mapping[str, str]]) -> tuple[str, str, str]:
    name, _, anchor = explanation.page.partition("#")
    link = f"[{titles[name][anchor]}]({explanation.page})"
    return code(explanation.word), f"{escaped(explanation.meaning)} {link}", code(explanation.command)
