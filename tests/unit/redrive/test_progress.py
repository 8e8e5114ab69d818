"""Progress in commit metadata: read back as written, and foreign text is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.redrive.selection import RateLimit, RedriveProgress, parse_metadata

COUNT = st.integers(0, 2**63 - 1)


@given(COUNT, COUNT, COUNT, COUNT)
def test_progress_survives_its_metadata(end: int, selected: int, moved: int, guarded: int) -> None:
    progress = RedriveProgress(end, selected, moved, guarded)
    assert parse_metadata(progress.metadata()) == progress
    assert len(progress.metadata()) < 4096, "brokers refuse more"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"v":2,"end":1,"selected":0,"moved":0,"guarded":0}',
        '{"v":1,"end":1,"selected":0,"moved":0}',
        '{"v":1,"end":-1,"selected":0,"moved":0,"guarded":0}',
        '{"v":1,"end":true,"selected":0,"moved":0,"guarded":0}',
        '{"v":1,"end":1.5,"selected":0,"moved":0,"guarded":0}',
        pytest.param("[" * 4000, id="deep"),
    ],
)
def test_metadata_of_others_is_none(text: str) -> None:
    assert parse_metadata(text) is None


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    parse_metadata(text)


@given(st.integers(1, 1000), st.lists(st.tuples(st.integers(1, 500), st.floats(0, 3)), min_size=1, max_size=60))
def test_rate_is_kept_for_any_batches_and_pauses(rate: int, batches: list[tuple[int, float]]) -> None:
    """Over any stretch no more goes than the rate and the last batch."""
    pace, now, sent = RateLimit(rate), 1000.0, 0
    for count, pause in batches:
        wait = pace.wait_s(count, now)
        assert wait >= 0
        now += wait
        assert sent <= rate * (now - 1000.0) + 1e-6
        sent += count
        now += pause


def test_without_a_rate_nothing_waits() -> None:
    assert {RateLimit(None).wait_s(500, now) for now in (1.0, 1.0, 2.0)} == {0.0}
