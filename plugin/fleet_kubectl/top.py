"""`top`: a live, full-screen view of all fleets.

A daemon thread lists and watches ConsumerGroups. Twice a second, the screen applies the changes that have arrived as
one batch. Only the visible rows are drawn. Textual's DataTable is not used, because it measures every cell of every
row, which takes seconds for 5,000 fleets (docs/decisions/0064-kubectl-plugin.md).
"""

import threading
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.message import Message
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Input, Static

from fleet_consumer.clock import Clock, SystemClock
from fleet_kubectl.api import Api, WatchExpired
from fleet_kubectl.details import detail_lines
from fleet_kubectl.errors import FleetError
from fleet_kubectl.groups import COLUMNS, RIGHT
from fleet_kubectl.live import Key, Rows
from fleet_kubectl.options import EXIT_OK
from fleet_kubectl.tables import GAP, cut, printable
from fleet_operator.clients.kinds import CONSUMER_GROUP, JsonObject
from fleet_operator.planning import times

BATCH_S: Final = 0.5
AGAIN_S: Final = 2.0
AGAIN_MAX_S: Final = 30.0
"""BATCH_S: seconds between batches. AGAIN_S: seconds between an error and the next list, doubled after each further
error, up to AGAIN_MAX_S."""
SIZES: Final = {"READY": 7, "WORKERS": 9, "LAG": 7, "BEHIND": 8, "WAITING": 7, "FAILED": 6}
SHARES: Final = {"NAMESPACE": 20, "NAME": 32, "REASON": 30, "STATE": 18}
"""Widths of the columns: SIZES in characters, SHARES in percent of the remaining width."""
STYLES: Final = (
    Style(color="red", bold=True),
    Style(color="yellow", bold=True),
    Style(color="yellow"),
    Style(),
)
"""Styles of rows, indexed by rank. The columns READY and REASON show the same as text."""


class Feed:
    """Passes lists and events from the watching thread to the screen."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._listed: list[JsonObject] | None = None
        self._events: deque[JsonObject] = deque()
        self._problem: str | None = None
        self._since = 0.0

    def list(self, bodies: list[JsonObject]) -> None:
        with self._lock:
            self._listed, self._problem = bodies, None
            self._events.clear()

    def add(self, event: JsonObject) -> None:
        with self._lock:
            self._events.append(event)

    def fail(self, problem: str) -> None:
        """Record a problem: from the first problem until the next list, the screen shows that its rows are not live."""
        with self._lock:
            self._since = self._clock.monotonic() if self._problem is None else self._since
            self._problem = problem

    def drain(self, rows: Rows) -> tuple[bool, str | None]:
        """Apply all waiting lists and events to `rows`. Returns True if there were any, and the problem of the watch
        with its age (None without a problem)."""
        with self._lock:
            listed, arrived = self._listed, [*self._events]
            self._listed = None
            self._events.clear()
            age = times.duration_text(int(self._clock.monotonic() - self._since))
            problem = None if self._problem is None else f"for {age}: {self._problem}"
        if listed is not None:
            rows.replace(listed)
        if arrived:
            rows.apply(arrived)
        return listed is not None or bool(arrived), problem


Source = Callable[[Feed], None]
"""A function that fills a Feed until the process ends. It runs in a daemon thread."""


def watching(api: Api, namespace: str | None, clock: Clock, wait: Callable[[float], object]) -> Source:
    """Create a Source that lists and watches ConsumerGroups.

    After an error, the source pauses, longer each time, and lists again. After an expired watch it lists without a
    pause, but pauses if the next watch also expires. Every error is shown, and none ends the thread.
    """

    def run(feed: Feed) -> None:
        watch = Watch(api, namespace, clock, wait)
        while True:
            try:
                watch.follow(feed)
            except WatchExpired:
                watch.expired()
            except FleetError as error:
                feed.fail(f"{error.reason}: {error}")
                watch.pause()
            except Exception as error:  # for example, an object of unexpected form
                feed.fail(printable(f"{type(error).__name__}: {error}"))
                watch.pause()

    return run


class Watch:
    """Lists and watches ConsumerGroups, and pauses after errors."""

    def __init__(self, api: Api, namespace: str | None, clock: Clock, wait: Callable[[float], object]) -> None:
        self._api, self._namespace, self._clock, self._wait = api, namespace, clock, wait
        self._errors = 0
        self._expired = False

    def follow(self, feed: Feed) -> None:
        """List, then watch until an error is raised."""
        page = self._api.list(CONSUMER_GROUP, self._namespace)
        feed.list(page.items)
        version = page.version
        while True:
            began, lived = self._clock.monotonic(), False
            try:
                for event in self._api.watch(CONSUMER_GROUP, self._namespace, version):
                    version = event["object"]["metadata"]["resourceVersion"]
                    feed.add(event)
                    lived = True
            finally:
                lived = lived or self._clock.monotonic() - began >= AGAIN_S
                if lived:
                    self._errors, self._expired = 0, False
            if not lived:
                self.pause()

    def expired(self) -> None:
        """Pause if this watch and the previous watch have expired without an event."""
        if self._expired:
            self.pause()
        self._expired = True

    def pause(self) -> None:
        self._wait(min(AGAIN_S * 2**self._errors, AGAIN_MAX_S))
        self._errors = min(self._errors + 1, 10)


class FleetList(ScrollView, can_focus=True):
    """The list of fleets. When rows move, the cursor follows its fleet; a cursor on the first row stays on the first
    row."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home,g", "move(-1000000)", "First", show=False),
        Binding("end,G", "move(1000000)", "Last", show=False),
        Binding("enter", "open", "Open"),
    ]

    class Opened(Message):
        """Sent when the user opens a fleet."""

        def __init__(self, key: Key) -> None:
            super().__init__()
            self.key = key

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self._rows = rows
        self._at = 0
        self._key: Key | None = None

    def rows_changed(self) -> None:
        """Redraw the list, with the cursor on the same fleet if it is still shown."""
        shown = self._rows.shown
        if self._key is not None and not (self._at < len(shown) and shown[self._at].key == self._key):
            self._at = next((at for at, fleet in enumerate(shown) if fleet.key == self._key), self._at)
        self._move_to(self._at)
        self.virtual_size = Size(self.size.width, len(shown))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        at = y + self.scroll_offset.y
        if at >= len(self._rows.shown):
            return Strip.blank(self.size.width, self.rich_style)
        fleet = self._rows.shown[at]
        style = self.rich_style + STYLES[fleet.rank]
        if at == self._at:
            style += Style(reverse=True)
        return Strip([Segment(row_text(fleet.cells(), self.size.width), style)]).adjust_cell_length(
            self.size.width, style
        )

    def action_move(self, by: int) -> None:
        self._move_to(self._at + by)
        self.refresh()

    def action_page(self, pages: int) -> None:
        self.action_move(pages * max(1, self.size.height - 1))

    def action_open(self) -> None:
        if self._rows.shown:
            self.post_message(self.Opened(self._rows.shown[self._at].key))

    def on_click(self, event: events.Click) -> None:
        self._move_to(event.y + self.scroll_offset.y)
        self.refresh()

    def _move_to(self, at: int) -> None:
        shown = self._rows.shown
        self._at = min(max(at, 0), max(len(shown) - 1, 0))
        self._key = shown[self._at].key if shown and self._at else None
        top, height = self.scroll_offset.y, max(1, self.size.height)
        if not top <= self._at < top + height:
            self.scroll_to(y=self._at if self._at < top else self._at - height + 1, animate=False)


def row_text(cells: tuple[str, ...], width: int) -> str:
    """One line with a row's cells, in the order of COLUMNS and as wide as the screen."""
    rest = max(0, width - sum(SIZES.values()) - len(GAP) * (len(COLUMNS) - 1))
    parts = []
    for name, cell in zip(COLUMNS, cells, strict=True):
        size = SIZES.get(name) or rest * SHARES[name] // 100
        parts.append(cut(cell, size).rjust(size) if name in RIGHT else cut(cell, size).ljust(size))
    return GAP.join(parts)


class FleetScreen(Screen[None]):
    """The live view of one fleet."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "app.pop_screen", "Back")]

    def __init__(self, rows: Rows, key: Key, clock: Clock) -> None:
        super().__init__()
        self._rows, self._key, self._clock = rows, key, clock
        self._last: Mapping[str, Any] | None = None

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(id="fleet", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self.show()
        self.set_interval(BATCH_S, self.show)

    def show(self) -> None:
        body = self._rows.body(self._key)
        text = self.query_one("#fleet", Static)
        if body is None:
            text.update(f"ConsumerGroup {'/'.join(self._key)} was deleted. Escape goes back.")
        elif body is not self._last:
            self._last = body
            text.update("\n".join(detail_lines(body, self._clock.wall())))


class Top(App[None]):
    """The application of `kubectl fleet top`."""

    TITLE = "kubectl fleet top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #summary { height: 1; text-style: bold; }
    #header { height: 1; text-style: bold underline; }
    #filter { height: 1; border: none; padding: 0; display: none; }
    #filter.open { display: block; }
    FleetList { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("s", "next_order", "Order"),
        Binding("r", "reverse", "Reverse"),
        Binding("escape", "clear", "Clear filter"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, source: Source, where: str, clock: Clock) -> None:
        super().__init__()
        self.fleets = Rows()
        self._feed = Feed(clock)
        self._source, self._where, self._clock = source, where, clock
        self._problem: str | None = None

    def compose(self) -> ComposeResult:
        yield Static(f"{self._where}: reading …", id="summary", markup=False)
        yield Static(id="header", markup=False)
        yield FleetList(self.fleets)
        yield Input(placeholder="words in namespace/name, ready or notready, reason, state", id="filter", compact=True)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(FleetList).focus()
        threading.Thread(target=self._source, args=(self._feed,), name="fleets", daemon=True).start()
        self.set_interval(BATCH_S, self._take)

    def on_resize(self, event: events.Resize) -> None:
        self.query_one("#header", Static).update(row_text(COLUMNS, event.size.width))

    def on_fleet_list_opened(self, message: FleetList.Opened) -> None:
        self.push_screen(FleetScreen(self.fleets, message.key, self._clock))

    def on_input_changed(self, message: Input.Changed) -> None:
        self.fleets.text = message.value
        self.fleets.arrange()
        self._draw()

    def on_input_submitted(self) -> None:
        self._close_filter()

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.add_class("open")
        field.focus()

    def action_clear(self) -> None:
        self.query_one("#filter", Input).value = ""
        self._close_filter()

    def action_next_order(self) -> None:
        self.fleets.next_order()
        self._draw()

    def action_reverse(self) -> None:
        self.fleets.reverse = not self.fleets.reverse
        self.fleets.arrange()
        self._draw()

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).remove_class("open")
        self.query_one(FleetList).focus()

    def _take(self) -> None:
        """Apply the changes that have arrived since the last batch."""
        changed, problem = self._feed.drain(self.fleets)
        if changed or problem != self._problem:
            self._problem = problem
            self._draw()

    def _draw(self) -> None:
        screen = self.screen_stack[0]
        screen.query_one(FleetList).rows_changed()
        screen.query_one("#summary", Static).update(self._summary())

    def _summary(self) -> str:
        if self._problem is not None:
            return f"NOT LIVE {self._problem}"
        fleets = self.fleets
        chosen = f"; {len(fleets.shown)} match {fleets.text!r}" if fleets.text else ""
        order = f"by {fleets.order}{', reversed' if fleets.reverse else ''}"
        return f"{self._where}: {fleets.total} fleets, {fleets.not_ready} not Ready{chosen}; {order}"


def top(api: Api, options: Namespace) -> int:
    namespace = None if options.all_namespaces else api.namespace
    api.check(CONSUMER_GROUP, namespace)  # check first, because the full screen would hide an error
    where = "all namespaces" if namespace is None else f"namespace {namespace}"
    clock = SystemClock()
    Top(watching(api, namespace, clock, threading.Event().wait), where, clock).run()
    return EXIT_OK
