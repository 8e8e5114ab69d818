"""A fleet with a retry policy: its managed topics, the policies file that its workers mount, and both kinds of workers.

The tests play the operator: they create the topics, and write the policies file as the kubelet renews a mounted
ConfigMap, by replacing a link.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fleet_consumer.contract import naming
from tests.broker.workers import COMMAND, Fleet, Kafka, Worker
from tests.unit.retry.policies import NO_BUDGET

MESSAGE_BYTES_MAX = 1_114_124
"""Kafka's default limit of a source topic plus 64 KiB."""
SIZES = (10, 1_000, 20_000, 400_000, 999_000)
"""Bytes of records that a source takes, from the smallest to nearly the largest."""
MANAGED = {
    "message.timestamp.type": "LogAppendTime",
    "cleanup.policy": "delete",
    "retention.ms": str(7 * 86_400_000),
    "max.message.bytes": str(MESSAGE_BYTES_MAX),
}
MANAGED_FAILED = {
    **MANAGED,
    "retention.ms": str(30 * 86_400_000),
    "max.message.bytes": str(MESSAGE_BYTES_MAX + 64 * 1024),
}
PAUSING_BUDGET: Mapping[str, Any] = {
    "maxFailurePercent": 50,
    "windowSeconds": 10,
    "minRecords": 20,
    "action": "Pause",
    "cooldownSeconds": 1,
}


def revision(sequence: Sequence[str], **changes: Any) -> dict[str, Any]:
    """The content of one policy revision; `changes` replace fields, such as `classify=[…]` or `budget={…}`."""
    content: dict[str, Any] = {
        "sequence": [naming.canonical_delay(naming.parse_delay(delay)) for delay in sequence],
        "classify": [],
        "undecodable": "Fail",
        "maxTotalSeconds": 86_400,
        "headerProfile": "Native",
        "budget": NO_BUDGET,
    }
    return content | changes


def revision_hash(content: Mapping[str, Any]) -> str:
    """The name of a revision: the first ten hex digits of the SHA-256 of its canonical JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:10]


class RetryFleet(Fleet):
    """A group with source, output, failed, retry and redrive topics, and a policies file at `policy_file`.

    `sequence` are delays such as `("1s", "1s", "2s")`; other fields of a revision may follow by name. `worker(…)`
    starts a main worker, `retry_worker(…)` one of the retry group; both take changes of worker.json as `Fleet.worker`
    does.
    """

    def __init__(
        self, kafka: Kafka, folder: Path, name: str, *, sequence: Sequence[str], partitions: int = 4, **policy: Any
    ) -> None:
        super().__init__(kafka, folder, name, partitions=partitions, failed_config=MANAGED_FAILED)
        self.partitions = partitions
        self.policy_file = folder / "policies" / "policies.json"
        self.revisions: dict[str, dict[str, Any]] = {}
        self.redrive = naming.redrive_topic(name)
        self._made: set[str] = set()
        kafka.create(self.redrive, partitions=partitions, config=MANAGED)
        self.current = self.follow(revision(sequence, **policy))

    def follow(self, content: Mapping[str, Any], *, drop: Sequence[str] = (), extra: Mapping[str, Any] = {}) -> str:
        """Make this revision the current one and keep the others, as an edit of the policy does; return its hash.

        Missing retry topics are created first. `drop` names revisions that leave the file; `extra` replaces fields of
        the file, such as `delays`.
        """
        name = revision_hash(content)
        self.revisions = {key: one for key, one in self.revisions.items() if key not in drop} | {name: dict(content)}
        delays = sorted({d for one in self.revisions.values() for d in one["sequence"]}, key=naming.parse_delay)
        missing = [delay for delay in delays if delay not in self._made]
        if missing:
            topics = [naming.retry_topic(self.name, delay) for delay in missing]
            self.kafka.create(*topics, partitions=self.partitions, config=MANAGED)
            self._made.update(missing)
        document = {
            "version": 1,
            "policy": "standard",
            "current": name,
            "revisions": self.revisions,
            "delays": delays,
            "partitions": self.partitions,
            "maxMessageBytes": MESSAGE_BYTES_MAX,
        }
        self.write_policies({**document, **extra})
        return name

    def write_policies(self, document: Mapping[str, Any]) -> None:
        """Replace the policies file in one step."""
        self.policy_file.parent.mkdir(exist_ok=True)
        fresh = self.policy_file.with_suffix(".new")
        fresh.write_text(json.dumps(document))
        fresh.replace(self.policy_file)

    def settings(self, **changes: Any) -> dict[str, Any]:
        """As `Fleet.settings`, with the policies file."""
        return super().settings(**{"retry": {"policyFile": str(self.policy_file)}, **changes})

    def retry_worker(self, ordinal: int = 0, *, command: Sequence[str] = (COMMAND,), **changes: Any) -> Worker:
        """Start a retry worker: the same settings and handler, `--role retry`. `command` is as in `Worker`."""
        return Worker(self.settings(**changes), self.folder, ordinal, role="retry", command=command)

    def retry_topic(self, delay: str) -> str:
        """The topic of one delay."""
        return naming.retry_topic(self.name, delay)
