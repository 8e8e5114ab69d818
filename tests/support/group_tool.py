"""`kafka-consumer-groups`, Kafka's own tool, and its tables."""

from __future__ import annotations

import re
from itertools import zip_longest

from tests.support.kafka import KafkaBroker

TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


def describe(broker: KafkaBroker, group: str, *what: str) -> list[dict[str, str]]:
    """The rows of `--describe` with `--state`, `--members` or `--offsets`, by column title; none for an empty table."""
    printed = broker.tool(TOOL, "--bootstrap-server", broker.bootstrap, "--describe", "--group", group, *what)
    lines = [line for line in printed.splitlines() if line.strip()]
    at = next((number for number, line in enumerate(lines) if line.startswith("GROUP ")), None)
    if at is None:
        return []
    # Columns are as wide as their widest cell, and a cell may be empty or hold a space.
    heads = list(re.finditer(r"\S+(?: \(ID\))?", lines[at]))
    spans = [(head[0], head.start(), after.start() if after else None) for head, after in zip_longest(heads, heads[1:])]
    return [{word: line[start:end].strip() for word, start, end in spans if word} for line in lines[at + 1 :]]


def delete(broker: KafkaBroker, group: str) -> None:
    """Delete a group that has no members."""
    broker.tool(TOOL, "--bootstrap-server", broker.bootstrap, "--delete", "--group", group)
