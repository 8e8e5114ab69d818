"""Changes for open pages, by server-sent events: each page is rendered once a second at most, for all who see it."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 1.0
WAITING_MAX: Final = 2
"""Fragments that wait for a slow viewer. Beyond them the viewer's stream ends; the browser opens it again."""
STREAMS_MAX: Final = 200
VIEWER_STREAMS_MAX: Final = 10
TICK_BUDGET_SECONDS: Final = 0.3
"""Time after which a round pauses until the next tick. Pages that were not rendered come first then, so pages become
slower if they are many, and the operator does not."""

Render = Callable[[], Awaitable[str | None]]


class TooManyStreamsError(Exception):
    """The console has STREAMS_MAX open streams, or one viewer has VIEWER_STREAMS_MAX."""


@dataclass(eq=False, slots=True)
class Stream:
    """The stream of one open page. `dropped`: the viewer was too slow, or the page no longer exists."""

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
    """A page with its open streams. `last`: the newest fragment, which a new stream gets at once."""

    render: Render
    streams: set[Stream] = field(default_factory=set)
    last: str | None = None


class Feed:
    """Renders the pages that somebody sees. Used on one event loop. `prepare` is called before each round."""

    def __init__(self, prepare: Callable[[], None]) -> None:
        self._prepare = prepare
        self._topics: dict[Hashable, _Topic] = {}
        self._due: deque[_Topic] = deque()

    @property
    def streams(self) -> int:
        return sum(len(topic.streams) for topic in self._topics.values())

    def subscribe(self, key: Hashable, render: Render, viewer: str) -> Stream:
        """Open a stream of a page. Equal keys share one rendering, so a key must contain what the viewer may read.
        Raises TooManyStreamsError."""
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
        """Render each page that somebody sees, and offer it to its streams if it has changed. Beyond
        TICK_BUDGET_SECONDS, the remaining pages are left to the next call."""
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
            await asyncio.sleep(0)  # requests are answered between pages


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
