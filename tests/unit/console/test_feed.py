"""The feed of open pages: its bounds, its budget of time, and its failures."""

from __future__ import annotations

import asyncio

import pytest

from fleet_operator.console import feed as feed_module
from fleet_operator.console.board import Board
from fleet_operator.console.feed import VIEWER_STREAMS_MAX, Feed, TooManyStreamsError
from fleet_operator.console.views.fleets import fleet_row
from tests.unit.console.bodies import fleet


async def same() -> str:
    return "x"


def nothing() -> None:
    """Nothing to prepare."""


def test_one_viewer_cannot_take_all_streams() -> None:
    feed = Feed(nothing)
    streams = [feed.subscribe(number, same, "ann") for number in range(VIEWER_STREAMS_MAX)]
    with pytest.raises(TooManyStreamsError):
        feed.subscribe("more", same, "ann")
    feed.subscribe("more", same, "bob")
    feed.unsubscribe(0, streams[0])
    feed.subscribe("more", same, "ann")


async def test_round_that_takes_too_long_goes_on_at_the_next_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "TICK_BUDGET_SECONDS", 0.01)
    feed, rendered = Feed(nothing), []

    def page(number: int) -> feed_module.Render:
        async def render() -> str:
            await asyncio.sleep(0.02)
            rendered.append(number)
            return "x"

        return render

    for number in range(3):
        feed.subscribe(number, page(number), f"viewer-{number}")
    for expected in ([0], [0, 1], [0, 1, 2], [0, 1, 2, 0]):
        await feed.render_all()
        assert rendered == expected


async def test_failure_to_prepare_does_not_stop_the_feed() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    feed = Feed(broken)
    stream = feed.subscribe("page", same, "ann")
    await feed.render_all()
    assert stream.fragments.get_nowait() == "x"


def test_rows_and_namespaces_are_sorted_once_for_each_version() -> None:
    board = Board()
    rows = [fleet_row(fleet(name, namespace)) for name, namespace in (("b", "shop"), ("a", "shop"), ("c", "bank"))]
    board.rows, board.version = {row.key: row for row in rows}, 1
    ordered, namespaces = board.ordered(), board.namespaces()
    assert ([row.name for row in ordered], namespaces) == (["c", "a", "b"], ["bank", "shop"])
    assert board.ordered() is ordered
    assert board.namespaces() is namespaces
    board.version = 2
    assert board.ordered() is not ordered
    assert board.namespaces() is not namespaces
