"""The older versions of Kafka that are tested, the tests, and those that need a newer version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tests.support.suites import Outcome

LANES: Final[Mapping[str, Mapping[str, str]]] = {
    "3.9.2": {
        "test_net_versions.py::test_every_shared_version_is_answered_in_full[OffsetCommitRequest]": (
            "ids of topics in commits (KIP-848) came with Kafka 4.1"
        ),
    },
    "3.6.2": {},
}
"""By version: the tests that must fail there, with the reason. Those of 3.6.2 are not recorded yet."""
SHORT: Final = (
    "tests/versions/test_pinned_broker.py",
    "tests/broker/test_net_versions.py",
    "tests/broker/test_net_cluster.py",
    "tests/broker/test_consumer_group.py",
    "tests/broker/test_consumer_positions.py",
    "tests/broker/test_m5_states.py",
)
"""Connections, versions of requests, membership, positions and commits."""
WHOLE: Final = ("tests/versions/test_pinned_broker.py", "tests/broker")


def reason_to_fail(version: str, node: str) -> str | None:
    """The reason why a test (a node id of pytest) must fail on this version, or None."""
    return LANES.get(version, {}).get(node.removeprefix("tests/broker/"))


def table(outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    """The results by version, then each test that did not pass, with its reason."""
    yield "| Kafka | Passed | Failed | Need a newer version | Seconds |"
    yield "|---|---:|---:|---:|---:|"
    for version, each in outcomes.items():
        counts = (each.passed, len(each.failed), len(each.skipped), round(each.seconds))
        yield f"| {version} | {' | '.join(f'{count:,}' for count in counts)} |"
    for version, each in outcomes.items():
        for title, entries in (("FAILED", each.failed), ("FLAKY", each.flaky), ("needs newer", each.skipped)):
            yield from _named(version, title, entries)


def _named(version: str, title: str, entries: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield from (f"{version} {title}: {name}: {reason.partition(chr(10))[0]}" for name, reason in entries)
