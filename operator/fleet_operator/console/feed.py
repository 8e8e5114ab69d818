"""Sends changes to open pages as server-sent events. A page is rendered at most once a second, for all its viewers."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 1.0
WAITING_MAX: Final = 2
"""Maximum number of fragments that wait for a slow viewer. If another fragment comes, the viewer's stream ends, and the
browser opens a new stream."""
STREAMS_MAX: Final = 200
VIEWER_STREAMS_MAX: Final = 10
TICK_BUDGET_SECONDS: Final = 0.3
"""Time in seconds after which a round of rendering pauses until the next tick. The next tick begins with the remaining
pages. Many open pages therefore slow down each other, but not the operator."""

Render = Callable[[], Awaitable[str | None]]


class TooManyStreamsError(Exception):
    """A limit of open streams is reached: STREAMS_MAX of the whole console, or VIEWER_STREAMS_MAX of the viewer."""


@dataclass(eq=False, slots=True)
class Stream:
    """The stream of one open page. `dropped` is set if the viewer was too slow, or if the page no longer exists."""

    viewer: str
    fragments: asyncio.Queue[str] = field(default_factory=lambda: asyncio.Queue(WAITING_MAX))
    dropped: asyncio.Event = field(default_factory=asyncio.Event)

    def offer(self, fragment: str) -> None:
        try:
            self.fragments.put_nowait(fragment)
        except asyncio.QueueFull:
            self.dropped.set()


@dataclass(slots=True)
class _Topic:
    """A page with its open streams. `last` is the newest fragment, with which each new stream begins."""

    render: Render
    streams: set[Stream] = field(default_factory=set)
    last: str | None = None


class Feed:
    """Renders the pages that have open streams. Used on one event loop. `prepare` is called before each round of
    rendering."""

    def __init__(self, prepare: Callable[[], None]) -> None:
        self._prepare = prepare
        self._topics: dict[Hashable, _Topic] = {}
        self._due: deque[_Topic] = deque()

    @property
    def streams(self) -> int:
        return sum(len(topic.streams) for topic in self._topics.values())

    def subscribe(self, key: Hashable, render: Render, viewer: str) -> Stream:
        """Open a stream of a page. Pages with equal keys are rendered once, so a key must include the viewer's
        permissions. Raises TooManyStreamsError."""
        own = sum(stream.viewer == viewer for topic in self._topics.values() for stream in topic.streams)
        if own >= VIEWER_STREAMS_MAX:
            raise TooManyStreamsError(f"{own} of your pages are open: close some, or reload this page later")
        if self.streams >= STREAMS_MAX:
            raise TooManyStreamsError(f"{STREAMS_MAX} pages are open: close some, or reload this page later")
        topic = self._topics.setdefault(key, _Topic(render))
        stream = Stream(viewer)
        topic.streams.add(stream)
        if topic.last is not None:
            stream.offer(topic.last)
        return stream

    def unsubscribe(self, key: Hashable, stream: Stream) -> None:
        topic = self._topics.get(key)
        if topic is not None:
            topic.streams.discard(stream)
            if not topic.streams:
                del self._topics[key]

    async def keep_rendering(self) -> None:
        """Render pages once a second. Never returns."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await self.render_all()

    async def render_all(self) -> None:
        """Render each page with open streams, and send it to the streams if it has changed. After TICK_BUDGET_SECONDS,
        the remaining pages are left to the next call."""
        try:
            self._prepare()
        except Exception:
            log.exception("the console cannot read changes")
        if not self._due:
            self._due.extend(self._topics.values())
        loop = asyncio.get_running_loop()
        until = loop.time() + TICK_BUDGET_SECONDS
        while self._due and loop.time() < until:
            await _render(self._due.popleft())
            await asyncio.sleep(0)  # let the event loop answer requests between two pages


async def _render(topic: _Topic) -> None:
    if not topic.streams:
        return
    try:
        fragment = await topic.render()
    except Exception:
        log.exception("a page of the console failed")
        fragment = None
    if fragment is None:
        for stream in topic.streams:
            stream.dropped.set()
    elif fragment != topic.last:
        topic.last = fragment
        for stream in topic.streams:
            stream.offer(fragment)
