"""`fleet-consumer skip`: which record, of which group, and the commit behind it."""

from __future__ import annotations

import pytest

from fleet_consumer.contract.pod import EXIT_OK, EXIT_SURROUNDINGS
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.retry.headers import ReplayEpoch, continued
from fleet_consumer.worker import cli
from fleet_consumer.worker.commands.failed_records import RecordMissing
from fleet_consumer.worker.commands.skip import behind, consuming_group, named, place_of
from tests.unit.worker.commands.brokers import ENDS, PARTITION, Brokers

FAILED = "_fleet.orders.failed"


def test_place_is_read_from_its_end_as_topics_may_have_any_of_its_signs() -> None:
    assert place_of("orders-3:17") == (PARTITION, 17)
    assert place_of("eu-orders-2-0:1") == (TopicPartition("eu-orders-2", 0), 1)
    assert place_of("_fleet.orders.retry.5m-1:0") == (TopicPartition("_fleet.orders.retry.5m", 1), 0)
    for text in ("orders", "orders:3:17", "orders-3", "-3:17", "orders-x:17", "orders-3:-1", "orders-3:²"):
        with pytest.raises(SettingsInvalid, match="it must have the form orders-3:1734"):
            place_of(text)


def test_place_in_a_topic_of_waiting_records_is_of_the_retry_workers_group() -> None:
    for topic in ("_fleet.orders.retry.5m", "_fleet.orders.redrive"):
        assert consuming_group("orders", topic) == "orders.retry"
    for topic in ("orders", "_fleet.others.retry.5m", "_fleet.orders.failed"):
        assert consuming_group("orders", topic) == "orders"


def test_only_the_next_record_is_skipped() -> None:
    record = Record("orders", 3, 17, 0, b"k", b"v")
    assert named(record, PARTITION, 17) is record
    with pytest.raises(RecordMissing, match="is at offset 17, not 19: only the next record"):
        named(record, PARTITION, 19)
    with pytest.raises(RecordMissing, match="orders-3 has no next record for the group"):
        named(None, PARTITION, 17)


def test_commit_behind_the_record_stays_in_its_replay_epoch() -> None:
    replay_epoch = ReplayEpoch("0123456789abcdef", 40)
    after = behind(17, OffsetAndMetadata(17, 2, f"{replay_epoch.metadata(17)} fleet-hand=17"))
    assert after.offset == 18
    assert continued(after) == replay_epoch
    assert behind(0, None) == (1, -1, "")
    assert behind(4, OffsetAndMetadata(4, -1, "by a tool")) == (5, -1, "")


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    return Brokers(monkeypatch, topics={"orders": 4, FAILED: 4})


def skip(offset: int) -> int:
    return cli.main(["skip", f"orders-3:{offset}", "--group", "orders", "--bootstrap", "127.0.0.1:9"])


def test_record_of_an_aborted_transaction_is_never_set_aside(
    brokers: Brokers, capsys: pytest.CaptureFixture[str]
) -> None:
    """A redrive would hand it to the handler."""
    brokers.aborted = {17, 18}
    assert skip(17) == EXIT_SURROUNDINGS
    said = capsys.readouterr().err
    assert (
        "next record in orders-3 is at offset 19, not 17: the group is past that record, or the record was deleted, or"
        in said
    )
    assert "its transaction was aborted" in said
    assert (brokers.written, brokers.coordinator.commits) == ([], 0)
    assert skip(19) == EXIT_OK
    assert brokers.written == [(FAILED, b"19")]
    assert brokers.coordinator.offsets[PARTITION].offset == 20


def test_records_of_transactions_that_none_committed_are_told_from_the_end(
    brokers: Brokers, capsys: pytest.CaptureFixture[str]
) -> None:
    brokers.aborted = set(range(ENDS))
    assert skip(17) == EXIT_SURROUNDINGS
    assert "orders-3 has no next record for the group" in capsys.readouterr().err
    assert brokers.written == []
