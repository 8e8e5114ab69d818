"""librdkafka reads certificates once; renewed ones are taken up when they are needed, and only if they are of use."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from e2e.local_cluster.pki import Authority
from fleet_consumer.clock import SystemClock
from fleet_consumer.fetch import thread as fetch_module
from fleet_consumer.fetch.thread import FetchThread
from fleet_consumer.librdkafka import added_authorities
from fleet_consumer.librdkafka.producer import RecordProducer
from fleet_consumer.librdkafka.settings import resolved
from tests.support.waiting import eventually

PATIENCE_S = 30.0


class Renewal:
    """A data plane that trusts a file, and knows a broker that nobody reaches, which is trouble from the start."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder / "one")
        authority.ensure()
        self._other = Authority(folder / "other")
        self._other.ensure()
        self.file = folder / "ca.crt"
        self.file.write_bytes(authority.root_certificate.read_bytes())
        self.config = {
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.file),
            "bootstrap.servers": "127.0.0.1:1",
            "log_level": 0,
        }
        self.thread = FetchThread(
            {**self.config, "group.id": "g", "auto.offset.reset": "error"},
            name="fetch-test",
            on_released=threading.Event().set,
            clock=SystemClock(),
        )

    def renew(self) -> None:
        """A new authority in the place of the old."""
        self.file.write_bytes(self._other.root_certificate.read_bytes())

    def add(self) -> None:
        """The new authority and the old one."""
        self.file.write_bytes(self.file.read_bytes() + self._other.root_certificate.read_bytes())


@pytest.fixture
def renewal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Renewal]:
    # So often does the thread handle its trouble while nobody reads.
    monkeypatch.setattr(fetch_module, "SERVE_S", 0.05)
    made = Renewal(tmp_path)
    made.thread.start()
    yield made
    assert made.thread.close(10)
    assert made.thread.failure is None


def told(caplog: pytest.LogCaptureFixture, words: str) -> Callable[[], bool]:
    return lambda: any(words in record.getMessage() for record in caplog.records)


def test_failing_data_plane_reconnects_with_renewed_files(renewal: Renewal, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    eventually(lambda: renewal.thread.last_error is not None, timeout_s=PATIENCE_S, what="trouble")
    renewal.renew()
    eventually(told(caplog, "librdkafka's consumer is replaced"), timeout_s=PATIENCE_S, what="the renewal to be used")


def test_renewal_that_cannot_be_used_leaves_the_data_plane_as_it_is(
    renewal: Renewal, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    eventually(lambda: renewal.thread.last_error is not None, timeout_s=PATIENCE_S, what="trouble")
    renewal.file.write_text("no certificate")
    eventually(told(caplog, "renewed TLS files cannot be used"), timeout_s=PATIENCE_S, what="the refusal to be told")
    assert renewal.thread.alive
    renewal.renew()
    eventually(told(caplog, "librdkafka's consumer is replaced"), timeout_s=PATIENCE_S, what="the next renewal in use")


def test_producer_that_is_refused_gives_up_open_sends_and_reconnects(
    renewal: Renewal, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever sent it sends it again: at once, and not after the delivery time-out of two minutes."""
    caplog.set_level(logging.INFO)
    producer = RecordProducer(renewal.config)
    handle = producer.send("t", key=None, value="v")
    assert producer.flush(1.0) == 1
    producer._on_error(KafkaError(KafkaError._SSL, "certificate verify failed"))
    renewal.renew()
    eventually(lambda: producer.flush(0.1) == 0, timeout_s=PATIENCE_S, what="the record to be given up")
    assert handle.error is not None
    assert handle.error.reason.startswith("_PURGE")
    assert told(caplog, "the producer is replaced")()


def test_producer_of_a_broker_that_is_away_keeps_open_sends(renewal: Renewal, caplog: pytest.LogCaptureFixture) -> None:
    """A restarted broker may have them already: sent again by another producer they would be there twice."""
    caplog.set_level(logging.INFO)
    producer = RecordProducer(renewal.config)
    handle = producer.send("t", key=None, value="v")
    assert producer.flush(1.0) == 1
    renewal.renew()
    assert producer.flush(1.0) == 1
    assert not handle.done
    assert not told(caplog, "the producer is replaced")()
    producer._on_error(
        KafkaError(KafkaError._TRANSPORT, "Receive failed: error:0A000412:SSL routines::bad certificate")
    )
    eventually(lambda: producer.flush(0.1) == 0, timeout_s=PATIENCE_S, what="the record to be given up")


def test_idle_producer_reconnects_after_any_error(renewal: Renewal, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    producer = RecordProducer(renewal.config)
    producer._on_error(KafkaError(KafkaError._TRANSPORT, "broker down"))
    renewal.renew()
    producer.flush(0.1)
    assert told(caplog, "the producer is replaced")()


@pytest.fixture
def producer(renewal: Renewal, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> RecordProducer:
    """One that has met no error, and checks its files with each call."""
    monkeypatch.setattr(added_authorities, "CHECK_INTERVAL_S", 0.0)
    caplog.set_level(logging.INFO)
    return RecordProducer({**renewal.config, "bootstrap.servers": "127.0.0.1:1"})


def use(producer: RecordProducer) -> None:
    """Have a producer check its files, without an error: that the broker is away is none here."""
    producer._had_error = False
    producer.flush(0)


def test_added_authority_is_taken_up_before_a_broker_is_refused(
    renewal: Renewal, producer: RecordProducer, caplog: pytest.LogCaptureFixture
) -> None:
    use(producer)
    assert not told(caplog, "the producer is replaced")()
    renewal.add()
    use(producer)
    assert told(caplog, "the producer is replaced")()
    caplog.clear()
    use(producer)
    assert not told(caplog, "the producer is replaced")()


def test_authority_in_the_place_of_another_waits_until_the_other_is_refused(
    renewal: Renewal, producer: RecordProducer, caplog: pytest.LogCaptureFixture
) -> None:
    """Brokers may have certificates of the old one for hours."""
    renewal.renew()
    use(producer)
    assert not told(caplog, "the producer is replaced")()


def test_second_renewal_is_taken_up_though_a_removed_authority_is_missing_in_it(
    renewal: Renewal, producer: RecordProducer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = renewal.file.read_bytes()
    renewal.add()
    use(producer)
    caplog.clear()
    renewal.file.write_bytes(renewal.file.read_bytes().removeprefix(first))
    use(producer)
    assert not told(caplog, "the producer is replaced")()
    third = Authority(tmp_path / "third")
    third.ensure()
    renewal.file.write_bytes(renewal.file.read_bytes() + third.root_certificate.read_bytes())
    use(producer)
    assert told(caplog, "the producer is replaced")()


def test_unreadable_authorities_are_compared_once_they_are_whole(
    renewal: Renewal, producer: RecordProducer, caplog: pytest.LogCaptureFixture
) -> None:
    before = renewal.file.read_bytes()
    renewal.file.write_bytes(before[: len(before) // 2])
    use(producer)
    renewal.file.write_bytes(before)
    renewal.add()
    use(producer)
    assert told(caplog, "the producer is replaced")()
    assert not told(caplog, "cannot be used")()


def test_record_in_flight_is_never_given_up_for_an_added_authority(
    renewal: Renewal, producer: RecordProducer, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker may have it, and only the producer that sent it can find out."""
    first = producer.send("t", key=None, value="v")
    renewal.add()
    producer._had_error = False
    second = producer.send("t", key=None, value="v")
    use(producer)
    assert not first.done
    assert not second.done
    assert not told(caplog, "the producer is replaced")()
    producer.abandon()
    use(producer)
    assert told(caplog, "the producer is replaced")()


def test_own_certificate_that_changes_with_the_authorities_waits_until_the_old_is_refused(
    tmp_path: Path, producer: RecordProducer, renewal: Renewal
) -> None:
    """Brokers may not accept it yet."""
    authority = Authority(tmp_path / "clients")
    authority.ensure()
    certificate = tmp_path / "client.crt"
    certificate.write_bytes(authority.root_certificate.read_bytes())
    watch = added_authorities.AddedAuthorities({**renewal.config, "ssl.certificate.location": str(certificate)})
    renewal.add()
    certificate.write_text("another")
    assert not watch.were_added(1.0)


def test_authorities_of_several_files_are_given_to_librdkafka_as_one_text(tmp_path: Path) -> None:
    both = []
    for name in ("old", "new"):
        authority = Authority(tmp_path / name)
        authority.ensure()
        (tmp_path / f"{name}.crt").write_bytes(authority.root_certificate.read_bytes())
        both.append(authority.root_certificate.read_text().strip())
    config = {"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "*.crt"), "client.id": "c"}
    assert resolved(config) == {
        "security.protocol": "SSL",
        "ssl.ca.pem": f"{both[1]}\n{both[0]}\n",
        "client.id": "c",
    }
    one_file = {"ssl.ca.location": str(tmp_path / "new.crt")}
    assert resolved(one_file) == {"ssl.ca.pem": f"{both[1]}\n"}


def test_data_plane_follows_authorities_of_several_files(
    renewal: Renewal, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    thread = FetchThread(
        {**renewal.config, "ssl.ca.location": str(tmp_path / "*.crt"), "group.id": "g", "auto.offset.reset": "error"},
        name="fetch-several",
        on_released=threading.Event().set,
        clock=SystemClock(),
    )
    thread.start()
    eventually(lambda: thread.last_error is not None, timeout_s=PATIENCE_S, what="trouble")
    (tmp_path / "another.crt").write_bytes(renewal.file.read_bytes())
    eventually(told(caplog, "librdkafka's consumer is replaced"), timeout_s=PATIENCE_S, what="the new file to be used")
    for file in tmp_path.glob("*.crt"):
        file.unlink()
    eventually(told(caplog, "holds a PEM certificate"), timeout_s=PATIENCE_S, what="the missing files to be told")
    assert thread.alive
    assert thread.close(10)
    renewal.file.write_text("for the other thread")
