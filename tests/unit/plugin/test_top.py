"""`kubectl fleet top` as a person uses it: 5,000 fleets, keys, changes, one fleet, and its picture."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Static

from fleet_consumer.clock import SystemClock
from fleet_kubectl.groups import COLUMNS
from fleet_kubectl.top import Feed, FleetList, FleetScreen, Top, row_text
from fleet_operator.clients.kinds import JsonObject
from tests.support.waiting import eventually_async
from tests.unit.plugin.fleets import condition, group

SIZE = (120, 32)
MANY = 5_000
PICTURES = os.environ.get("FLEET_PICTURES")
"""A folder for pictures of the screen; without it, the test's own."""


def fleets(count: int, seed: int) -> list[JsonObject]:
    """Fleets of many teams. The first is refused, each tenth has failed records."""
    dice = random.Random(seed)
    refused = (
        condition("Ready", "False", "RevisionRefused", "module handler has no handle"),
        condition("Stalled", "True", "Refused"),
        condition("Degraded", "True", "RevisionRefused"),
    )
    made = [
        group(
            "payments", "billing", *refused, lagApproximate=65536, behindText="14m", retry={"waiting": 64, "failed": 12}
        )
    ]
    for number in range(1, count):
        retry = {"waiting": dice.randrange(9), "failed": (number % 10 == 0 and dice.randint(1, 99)) or 0}
        lag = 2 ** dice.randrange(18)
        made.append(
            group(
                f"orders-{number:04}",
                f"team-{number % 40:02}",
                lagApproximate=lag,
                behindText=f"{lag % 60}s",
                retry=retry,
            )
        )
    return made


def source_of(bodies: list[JsonObject]) -> tuple[Callable[[Feed], None], list[Feed]]:
    """A source that lists once, and the feeds it has filled, into which a test adds changes."""
    feeds: list[Feed] = []

    def run(feed: Feed) -> None:
        feed.list(bodies)
        feeds.append(feed)

    return run, feeds


def lines(app: Top) -> list[str]:
    """The lines of the list as they are drawn."""
    table = app.screen_stack[0].query_one(FleetList)
    return [table.render_line(y).text for y in range(table.size.height)]


def summary(app: Top) -> str:
    return str(app.screen_stack[0].query_one("#summary", Static).content)


async def until(app: Top, pilot: Pilot[None], text: str) -> None:
    """Wait until the first line of the screen has a text."""

    async def seen() -> bool:
        await pilot.pause()
        assert text in summary(app), summary(app)
        return True

    await eventually_async(seen, what=f"{text} in the summary", timeout_s=60)


async def test_five_thousand_fleets_are_painted_at_once_and_keys_respond() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    run, feeds = source_of(fleets(MANY, seed))
    app = Top(run, "all namespaces", SystemClock())
    began = time.perf_counter()
    async with app.run_test(size=SIZE) as pilot:
        await until(app, pilot, f"{MANY} fleets, 1 not Ready")
        painted = time.perf_counter() - began
        first = lines(app)[0]
        assert first.split()[:4] == ["billing", "payments", "False", "RevisionRefused"]
        began = time.perf_counter()
        for key in ("end", "pagedown", "home", "s", "r", "r"):
            await pilot.press(key)
        keys = (time.perf_counter() - began) / 6
        assert "by lag" in summary(app)
        began = time.perf_counter()
        for number in range(1, 1001):
            changed = group(f"orders-{number:04}", f"team-{number % 40:02}", lagApproximate=2**30)
            feeds[0].add({"type": "MODIFIED", "object": changed})

        async def changed_rows() -> bool:
            await pilot.pause()
            return all("1.07G" in line for line in lines(app))

        await eventually_async(changed_rows, what="a batch of changes", timeout_s=60)
        batch = time.perf_counter() - began
    print(f"{MANY} fleets: first paint {painted:.2f} s, a key {keys * 1000:.0f} ms, 1000 changes {batch:.2f} s")
    assert painted < 20
    assert keys < 2


async def test_filter_opens_with_a_slash_and_selects_by_every_word() -> None:
    run, _ = source_of(fleets(200, 1))
    app = Top(run, "all namespaces", SystemClock())
    async with app.run_test(size=SIZE) as pilot:
        await until(app, pilot, "200 fleets")
        await pilot.press("slash", *"team-07 0047")
        assert [line.split()[:2] for line in lines(app) if line.strip()] == [["team-07", "orders-0047"]]
        await pilot.press("enter")
        assert app.focused is app.query_one(FleetList)
        assert "1 match" in summary(app)
        await pilot.press("escape")
        assert app.query_one("#filter", Input).value == ""
        assert len(app.fleets.shown) == 200
        await pilot.press("slash", *"notready")
        assert [fleet.name for fleet in app.fleets.shown] == ["payments"]


async def test_cursor_stays_at_its_fleet_and_enter_opens_it_live() -> None:
    run, feeds = source_of(fleets(50, 2))
    app = Top(run, "all namespaces", SystemClock())
    async with app.run_test(size=SIZE) as pilot:
        await until(app, pilot, "50 fleets")
        await pilot.press("s", "s", "s", "s", "s", "down", "down")  # by name
        key = app.fleets.shown[2].key
        feeds[0].add({"type": "ADDED", "object": group("aaa", "aaa")})
        await until(app, pilot, "51 fleets")
        await pilot.press("enter")
        assert isinstance(app.screen, FleetScreen)
        shown = str(app.screen.query_one("#fleet", Static).content)
        assert f"ConsumerGroup {'/'.join(key)} is Ready" in shown
        member = {
            "pod": f"{key[1]}-fleet-0",
            "state": "Active",
            "partitionCount": 4,
            "partitions": [{"topic": "orders", "ranges": "0-3"}],
        }
        feeds[0].add({"type": "MODIFIED", "object": group(key[1], key[0], members=[member])})

        async def live() -> bool:
            await pilot.pause()
            return "orders:0-3" in str(app.screen.query_one("#fleet", Static).content)

        await eventually_async(live, what="the new member on the open screen")
        await pilot.press("escape")
        assert not isinstance(app.screen, FleetScreen)


async def test_deleted_fleet_and_lost_watch_are_said() -> None:
    run, feeds = source_of(fleets(3, 3))
    app = Top(run, "all namespaces", SystemClock())
    async with app.run_test(size=SIZE) as pilot:
        await until(app, pilot, "3 fleets")
        feeds[0].add({"type": "DELETED", "object": group("payments", "billing")})
        await until(app, pilot, "2 fleets, 0 not Ready")
        feeds[0].fail("NoCluster: the API server does not respond")
        await until(app, pilot, "NOT LIVE for ")
        first = summary(app)
        assert first.endswith("s: NoCluster: the API server does not respond")

        async def older() -> bool:
            await pilot.pause()
            return summary(app) != first

        await eventually_async(older, what="the age of the problem grows", timeout_s=60)
        assert len(app.fleets.shown) == 2
        feeds[0].list(fleets(3, 3))
        await until(app, pilot, "3 fleets")


async def test_q_quits() -> None:
    run, _ = source_of(fleets(3, 4))
    app = Top(run, "namespace shop", SystemClock())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("q")
    assert app.return_code == 0


async def test_screens_have_a_picture(tmp_path: Path) -> None:
    """The pictures of docs/kubectl-fleet.md: FLEET_PICTURES names their folder."""
    folder = Path(PICTURES) if PICTURES else tmp_path
    run, _ = source_of(fleets(60, 5))
    app = Top(run, "all namespaces", SystemClock())
    async with app.run_test(size=SIZE) as pilot:
        await until(app, pilot, "60 fleets")
        app.save_screenshot("top.svg", str(folder))
        await pilot.press("enter")

        async def painted() -> bool:
            await pilot.pause()
            app.save_screenshot("top-fleet.svg", str(folder))
            return "ConsumerGroup" in (folder / "top-fleet.svg").read_text()

        await eventually_async(painted, what="the screen of one fleet", timeout_s=60)
    assert "RevisionRefused" in (folder / "top.svg").read_text()


@pytest.mark.parametrize("width", [80, 100, 120, 240])
def test_rows_fit_the_terminal(width: int) -> None:
    assert len(row_text(COLUMNS, width)) <= width
