"""A commit continues a replay epoch only if a worker made it for its offset; a replay epoch's id reaches every retry
publish of it."""

from __future__ import annotations

import pytest

from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.retry.headers import ReplayEpoch, carried_on, continued

ID = "0123456789abcdef"


@pytest.mark.parametrize("replay_epoch", [ReplayEpoch(), ReplayEpoch(ID), ReplayEpoch(ID, 500)])
def test_a_replay_epoch_is_continued_from_its_mark(replay_epoch: ReplayEpoch) -> None:
    assert continued(OffsetAndMetadata(120, -1, replay_epoch.metadata(120))) == replay_epoch
    assert (
        continued(OffsetAndMetadata(120, -1, f"fleet-breaker=open;until=5 {replay_epoch.metadata(120)}"))
        == replay_epoch
    )


def test_a_bounded_replay_epoch_is_over_at_its_end() -> None:
    replay_epoch = ReplayEpoch(ID, 500)
    assert (replay_epoch.at(499), replay_epoch.at(500)) == (ID, None)
    assert continued(OffsetAndMetadata(500, -1, replay_epoch.metadata(500))) == ReplayEpoch()


@pytest.mark.parametrize(
    "committed",
    [
        None,
        OffsetAndMetadata(120),
        OffsetAndMetadata(120, -1, "reset by somebody"),
        OffsetAndMetadata(120, -1, "fleet-reset=0123456789abcdef"),
        OffsetAndMetadata(120, -1, "fleet-breaker=open;until=5"),
        OffsetAndMetadata(120, -1, f"fleet-replay-epoch=120;id={ID.upper()}"),
        OffsetAndMetadata(120, -1, "fleet-replay-epoch=120;until=5"),
        OffsetAndMetadata(120, -1, f"fleet-replay-epoch=120;id={ID};until="),
        OffsetAndMetadata(120, -1, "fleet-replay-epoch=" + "1" * 4000),
    ],
)
def test_a_commit_without_our_mark_continues_nothing(committed: OffsetAndMetadata | None) -> None:
    assert continued(committed) is None


def test_an_offset_that_was_moved_with_its_metadata_continues_nothing() -> None:
    assert continued(OffsetAndMetadata(20, -1, ReplayEpoch(ID).metadata(120))) is None


def test_retry_publish_replay_epoch_derives_from_record_and_partition() -> None:
    assert carried_on(None, None) is None
    assert carried_on(ID, None) == carried_on(None, ID) == ID
    both = carried_on(ID, "f" * 16)
    assert both == carried_on(ID, "f" * 16)
    assert both not in (ID, "f" * 16, carried_on("f" * 16, ID))
    assert both is not None
    assert continued(OffsetAndMetadata(1, -1, ReplayEpoch(both).metadata(1))) == ReplayEpoch(both)
