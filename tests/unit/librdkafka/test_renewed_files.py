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
            on_turn=threading.Event().set,
            clock=SystemClock(),
        )

    def renew(self) -> None:
        """A new authority in the place of the old."""
        self.file.write_bytes(self._other.root_certificate.read_bytes())


@pytest.fixture
def renewal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Renewal]:
    # So often does the thread look after its trouble while nobody reads.
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
    eventually(told(caplog, "the data plane connects anew"), timeout_s=PATIENCE_S, what="the renewal to be used")


def test_renewal_that_cannot_be_used_leaves_the_data_plane_as_it_is(
    renewal: Renewal, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    eventually(lambda: renewal.thread.last_error is not None, timeout_s=PATIENCE_S, what="trouble")
    renewal.file.write_text("no certificate")
    eventually(told(caplog, "renewed TLS files are of no use"), timeout_s=PATIENCE_S, what="the refusal to be told")
    assert renewal.thread.alive
    renewal.renew()
    eventually(told(caplog, "the data plane connects anew"), timeout_s=PATIENCE_S, what="the next renewal to be used")


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
    assert told(caplog, "the producer connects anew")()


def test_producer_of_a_broker_that_is_away_keeps_open_sends(renewal: Renewal, caplog: pytest.LogCaptureFixture) -> None:
    """A restarted broker may have them already: sent again by another producer they would be there twice."""
    caplog.set_level(logging.INFO)
    producer = RecordProducer(renewal.config)
    handle = producer.send("t", key=None, value="v")
    assert producer.flush(1.0) == 1
    renewal.renew()
    assert producer.flush(1.0) == 1
    assert not handle.done
    assert not told(caplog, "the producer connects anew")()
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
    assert told(caplog, "the producer connects anew")()


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
        on_turn=threading.Event().set,
        clock=SystemClock(),
    )
    thread.start()
    eventually(lambda: thread.last_error is not None, timeout_s=PATIENCE_S, what="trouble")
    (tmp_path / "another.crt").write_bytes(renewal.file.read_bytes())
    eventually(told(caplog, "the data plane connects anew"), timeout_s=PATIENCE_S, what="the new file to be used")
    for file in tmp_path.glob("*.crt"):
        file.unlink()
    eventually(told(caplog, "holds a PEM certificate"), timeout_s=PATIENCE_S, what="the missing files to be told")
    assert thread.alive
    assert thread.close(10)
    renewal.file.write_text("for the other thread")
