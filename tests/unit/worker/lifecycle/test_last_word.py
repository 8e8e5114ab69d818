"""A process that is killed leaves the record in its handler's hands in the termination message, or nothing at all."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fleet_consumer.handlers.loading import Handler
from fleet_consumer.record import Record
from fleet_consumer.worker.lifecycle.termination import RECORD_CALLS_S, LastWord
from tests.support.clock import StillClock

FIRST, SECOND = (Record("orders", 3, offset, 0, None, b"v") for offset in (41, 42))


class Container:
    """A container's termination message and the scratch volume of its pod."""

    def __init__(self, folder: Path) -> None:
        self.clock = StillClock()
        self.path, self.marker = folder / "termination-log", folder / "alive"
        self.path.touch()

    def process(self) -> LastWord:
        word = LastWord(self.clock, self.path, self.marker)
        word.open()
        return word

    def records(self) -> list[tuple[str, int, int]]:
        text = self.path.read_text()
        told = json.loads(text)["records"] if text else []
        return [(each["topic"], each["partition"], each["offset"]) for each in told]


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def handler(call: Any, **changes: Any) -> Handler:
    return Handler("shop:handle", call, **changes)


def test_record_that_takes_long_is_noted_and_forgotten_when_it_is_done(container: Container) -> None:
    word = container.process()
    word.record_held([None, FIRST])
    assert container.records() == []
    word.record_held([None, FIRST])
    assert container.records() == [("orders", 3, 41)]
    word.record_held([SECOND])
    assert container.records() == []


def test_process_that_follows_a_death_notes_each_record_before_its_call(container: Container) -> None:
    container.process()
    seen = []
    following = container.process().recording(handler(lambda record: seen.append(container.records())))
    following.call(FIRST)
    following.call([SECOND, FIRST])
    assert seen == [[("orders", 3, 41)], [("orders", 3, 42)]]
    assert container.records() == []


def test_asynchronous_calls_are_noted_together(container: Container) -> None:
    container.process()
    seen = []

    async def call(record: Record) -> None:
        await asyncio.sleep(0)
        seen.append(container.records())

    async def both(recorded: Handler) -> None:
        await asyncio.gather(recorded.call(FIRST), recorded.call(SECOND))

    asyncio.run(both(container.process().recording(handler(call, asynchronous=True))))
    assert seen[0] == [("orders", 3, 41), ("orders", 3, 42)]
    assert container.records() == []


def test_process_that_follows_an_orderly_end_calls_its_handler_directly(container: Container) -> None:
    container.process().close()
    plain = handler(lambda record: None)
    assert container.process().recording(plain) is plain


def test_recording_of_calls_ends(container: Container) -> None:
    container.process()
    seen = []
    recorded = container.process().recording(handler(lambda record: seen.append(container.records())))
    container.clock.now += RECORD_CALLS_S
    recorded.call(FIRST)
    assert seen == [[]]


def test_orderly_end_leaves_no_word(container: Container) -> None:
    word = container.process()
    word.record_held([FIRST])
    word.record_held([FIRST])
    word.close()
    word.close()
    assert container.path.read_text() == ""


def test_outside_of_a_container_nothing_is_written(tmp_path: Path) -> None:
    word = LastWord(StillClock(), tmp_path / "none", tmp_path / "alive")
    word.open()
    word.record_held([FIRST])
    word.record_held([FIRST])
    word.close()
    assert list(tmp_path.iterdir()) == []
