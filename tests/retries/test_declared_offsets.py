"""A declared skip on a real broker, of a record that kills its processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet_consumer.contract.skips import Place, render_skips
from tests.broker.workers import Kafka
from tests.retries.test_deaths import FORMS, SHORT, fleet_of, kept_alive
from tests.support.waiting import eventually

pytestmark = pytest.mark.together


@pytest.mark.parametrize(("how", "form"), [("kill", "alone"), ("exit", "threads"), ("segfault", "batch")])
def test_skipped_record_kills_no_further_process_and_all_others_are_done(
    kafka: Kafka, tmp_path: Path, how: str, form: str
) -> None:
    """The list comes after the first death; the kubelet would restart the process with the same mounted file."""
    fleet = fleet_of(kafka, tmp_path, f"skipped-{how}-{form}")
    skip_file = tmp_path / "skip.json"
    fleet.send(*({"do": how if n == 100 else "ok", "n": n} for n in range(200)), partition=0)
    with kept_alive(fleet, 1, skipFile=str(skip_file), **SHORT, **FORMS[form]) as ended:
        eventually(lambda: ended, timeout_s=180, what="the first death")
        skip_file.write_text(json.dumps(render_skips(fleet.settings()["uid"], [Place(fleet.source, 0, 100)])))
        fleet.wait_committed(timeout_s=180)
    assert {json.loads(each.value or b"")["n"] for each in kafka.read(fleet.output)} == set(range(200)) - {100}
    (failed,) = kafka.read(fleet.failed)
    assert json.loads(failed.value or b"")["n"] == 100
    assert (failed.headers["kr-reason"], failed.headers["kr-error-class"]) == (b"skipped", b"Skipped")
    assert failed.headers["trace"] == b"t-101", "with its own headers"
    assert len(ended) <= 3, "the one before the list, and those that had begun before it"
