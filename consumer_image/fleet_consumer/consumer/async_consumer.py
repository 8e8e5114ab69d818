"""`AsyncConsumer`: a `Consumer` for asyncio. One thread owns the consumer, and the event loop never waits for this
thread.

Calls run on the owner's thread, one after another. Any other call interrupts a poll that waits for records. Polled
records stay in a `Handover` until a task takes them on the event loop, in one step that cannot be cancelled. So a
cancelled task has taken no records. Records that were not taken do not count as done: the next poll returns them, and
commits of positions exclude them. Before the consumer gives up partitions, it seeks back to the first of these records.

Decision: docs/decisions/0022-library-classes.md.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from fleet_consumer.clock import Clock, SystemClock
from fleet_consumer.consumer.consumer import Consumer, ConsumerSettings, RebalanceCallback
from fleet_consumer.consumer.owner_thread import Handover, OwnerThread
from fleet_consumer.consumer.settings import DEFAULT_TIMEOUT_S
from fleet_consumer.contract.naming import TopicPattern
from fleet_consumer.group import errors
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.record import Record, Records, TopicPartition

__all__ = ["AsyncConsumer", "AsyncRebalanceCallback"]

AsyncRebalanceCallback = Callable[[Sequence[TopicPartition]], Awaitable[None] | None]

P = ParamSpec("P")
T = TypeVar("T")

ITERATION_S: Final = 3600.0
"""Timeout in seconds of each poll by `async for`, which repeats polls until a record arrives."""

_inside_callback_of: "ContextVar[AsyncConsumer | None]" = ContextVar("inside_callback_of", default=None)


def _awaited(
    call: Callable[Concatenate[Consumer, P], T],
) -> "Callable[Concatenate[AsyncConsumer, P], Coroutine[Any, Any, T]]":
    """Make an async method that runs a method of `Consumer` on the owner's thread."""

    @wraps(call)
    async def awaited(self: "AsyncConsumer", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._call(lambda: call(self._consumer, *args, **kwargs))

    return awaited


def _at_once(call: Callable[[Consumer], T]) -> "Callable[[AsyncConsumer], T]":
    """Make a method that calls a non-blocking method of `Consumer` on the caller's thread."""
    return wraps(call)(lambda self: call(self._consumer))


class AsyncConsumer:
    """A `Consumer` with async methods; `Consumer` documents their meaning and errors. Belongs to one event loop.

    Any task may call any method, but only one task at a time may poll or iterate. `async for record in consumer`
    returns single records and ends when the consumer is closed. A commit of positions counts every returned record as
    done, even the last record, which may still be in use. Callbacks may be coroutine functions. They run on the event
    loop while the rebalance waits, and may await any call except `poll`, `subscribe`, `assign`, `unsubscribe` and
    `close`.

    Cancelling a call discards its result; the call itself may still take effect.
    """

    def __init__(self, settings: ConsumerSettings, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._consumer = Consumer(settings, self._clock)
        self._owner = OwnerThread(f"consumer-{settings.title}", self._consumer.wakeup)
        self._handover = Handover()
        self._polling = False
        self._woken = False
        self._closing: asyncio.Future[None] | None = None

    async def __aenter__(self) -> "AsyncConsumer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # Records.

    async def poll(self, timeout_s: float, *, max_records: int | None = None) -> Records:
        """Return records as `Consumer.poll` does. If the call is cancelled, the next poll returns its records."""
        await self._await_records(timeout_s, max_records)
        return self._handover.take_records(max_records)

    def __aiter__(self) -> "AsyncConsumer":
        return self

    async def __anext__(self) -> Record:
        while (record := self._handover.take_one()) is None:
            if self._closing is not None:
                raise StopAsyncIteration
            try:
                await self._await_records(ITERATION_S, None)
            except errors.ConsumerClosed:
                raise StopAsyncIteration from None
        return record

    async def _await_records(self, timeout_s: float, max_records: int | None) -> None:
        """Poll, at least once, until records or gaps arrive, `wakeup` is called, or the time is up. Does not poll if
        earlier records are waiting."""
        self._refuse_in_callback("poll")
        if self._polling:
            raise errors.ConcurrentUse("another task polls this consumer, or iterates over it")
        self._polling = True
        deadline = self._clock.monotonic() + timeout_s
        left = timeout_s
        try:
            # Checked before a new poll, which would overwrite the error of a cancelled poll.
            self._handover.raise_failure()
            while not (self._handover and max_records != 0):
                await self._owner.call(lambda left=left: self._fill(left, max_records), interruptible=True)  # type: ignore[misc]
                self._handover.raise_failure()
                left = deadline - self._clock.monotonic()
                if self._woken or left <= 0:
                    self._woken = False
                    return
        except asyncio.CancelledError:
            # The thread's poll should end soon; the next poll returns its records.
            self._consumer.wakeup()
            raise
        finally:
            self._polling = False

    def wakeup(self) -> None:
        """Make the current `poll`, or the next `poll` if none is running, return immediately. May be called from any
        thread."""
        self._woken = True
        self._consumer.wakeup()

    # Membership.

    async def subscribe(
        self,
        topics: Iterable[str] | TopicPattern,
        *,
        on_assigned: AsyncRebalanceCallback | None = None,
        on_revoked: AsyncRebalanceCallback | None = None,
        on_lost: AsyncRebalanceCallback | None = None,
    ) -> None:
        """Join the group as `Consumer.subscribe` does; callbacks may be coroutine functions."""
        self._refuse_in_callback("subscribe")
        wanted = topics if isinstance(topics, (str, TopicPattern)) else tuple(topics)
        await self._call(
            lambda: self._consumer.subscribe(
                wanted,
                on_assigned=self._callback(on_assigned),
                on_revoked=self._callback(on_revoked),
                on_lost=self._callback(on_lost),
            )
        )

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions as `Consumer.assign` does."""
        self._refuse_in_callback("assign")
        wanted = tuple(partitions)
        await self._call(lambda: self._give_back_and(lambda: self._consumer.assign(wanted)), in_callbacks=False)

    async def unsubscribe(self) -> None:
        """Give up all partitions and leave the group, as `Consumer.unsubscribe` does."""
        self._refuse_in_callback("unsubscribe")
        await self._call(lambda: self._give_back_and(self._consumer.unsubscribe), in_callbacks=False)

    async def close(self, timeout_s: float = 30.0, leave: str = "default") -> None:
        """Close as `Consumer.close` does. Closing continues even if the awaiting task is cancelled. Idempotent."""
        self._refuse_in_callback("close")
        if self._closing is not None and self._closing.done():
            return
        if self._closing is None:
            self._closing = self._owner.call(
                lambda: self._give_back_and(lambda: self._consumer.close(timeout_s, leave)),
                in_callbacks=False,
                last=True,
            )
        await asyncio.shield(self._closing)

    enforce_rebalance = _awaited(Consumer.enforce_rebalance)
    membership = _at_once(Consumer.membership)
    holds_session = _at_once(Consumer.holds_session)
    group_metadata = _awaited(Consumer.group_metadata)

    # Offsets.

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Commit and wait for the result. If `offsets` is None, the positions are committed."""
        await self._call(lambda: self._consumer.commit(self._given_out() if offsets is None else offsets, timeout_s))

    committed = _awaited(Consumer.committed)

    async def position(self, partition: TopicPartition) -> int | None:
        """Return the offset of the next record that `poll` may return, or None while this offset is being looked up."""
        return await self._call(lambda: self._position(partition))

    async def lag(self, partition: TopicPartition) -> int | None:
        """Return the end offset minus the position, or None while either is unknown."""
        return await self._call(lambda: self._lag(partition))

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue reading at `offset`."""
        await self._call(lambda: self._drop_after(lambda: self._consumer.seek(partition, offset), (partition,)))

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Continue reading these partitions (default: all owned partitions) at the first existing offset."""
        parts = tuple(partitions)
        await self._call(lambda: self._drop_after(lambda: self._consumer.seek_to_beginning(parts), parts))

    async def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Continue reading these partitions (default: all owned partitions) after the last record."""
        parts = tuple(partitions)
        await self._call(lambda: self._drop_after(lambda: self._consumer.seek_to_end(parts), parts))

    offsets_for_times = _awaited(Consumer.offsets_for_times)
    beginning_offsets = _awaited(Consumer.beginning_offsets)
    end_offsets = _awaited(Consumer.end_offsets)
    batch_end = _awaited(Consumer.batch_end)
    unreadable = _at_once(Consumer.unreadable)
    out_of_range = _at_once(Consumer.out_of_range)
    truncations = _at_once(Consumer.truncations)

    # Partitions.

    partitions_for = _awaited(Consumer.partitions_for)
    list_topics = _awaited(Consumer.list_topics)

    async def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`."""
        parts = tuple(partitions)
        await self._call(lambda: self._pause(parts))

    async def resume(self, partitions: Iterable[TopicPartition]) -> None:
        parts = tuple(partitions)
        await self._call(lambda: self._consumer.resume(parts))

    paused = _at_once(Consumer.paused)
    assignment = _at_once(Consumer.assignment)

    # On the event loop.

    async def _call(self, job: Callable[[], T], *, in_callbacks: bool = True) -> T:
        return await self._owner.call(job, in_callbacks=in_callbacks)

    def _refuse_in_callback(self, call: str) -> None:
        if _inside_callback_of.get() is self:
            raise errors.ConcurrentUse(f"callbacks may not call {call}")

    def _callback(self, callback: AsyncRebalanceCallback | None) -> RebalanceCallback | None:
        """Wrap the user's callback for the owner's thread: the wrapper waits while the callback runs on the event
        loop."""
        if callback is None:
            return None

        async def run(partitions: Sequence[TopicPartition]) -> None:
            _inside_callback_of.set(self)
            result = callback(partitions)
            if inspect.isawaitable(result):
                await result

        def run_and_wait(partitions: Sequence[TopicPartition]) -> None:
            self._owner.wait_for(asyncio.run_coroutine_threadsafe(run(partitions), self._owner.loop))

        return run_and_wait

    # On the owner's thread.

    def _fill(self, timeout_s: float, max_records: int | None) -> None:
        """Poll, and store the records in the handover. They are stored even if the polling task was cancelled."""
        if self._handover and max_records != 0:
            return  # The records of a cancelled poll are still waiting.
        # If partitions are revoked during the poll, records that no task has taken must not count as done.
        self._give_back()
        try:
            self._handover.put(self._consumer.poll(timeout_s, max_records=max_records))
        except Exception as error:
            self._handover.fail(error)

    def _give_back_and(self, job: Callable[[], None]) -> None:
        self._give_back()
        job()

    def _give_back(self) -> None:
        self._seek_back(frozenset(self._handover.first_offsets()))

    def _seek_back(self, partitions: frozenset[TopicPartition]) -> None:
        """Seek back to the first record that was not taken in each of these partitions."""
        owned = self._consumer.assignment()
        for part, offset in self._handover.drop(partitions).items():
            if part in owned:
                # After a fatal error the seek fails. But then commits fail, too, so no record is skipped.
                with suppress(errors.FatalConsumerError):
                    self._consumer.seek(part, offset)

    def _drop_after(self, job: Callable[[], None], partitions: tuple[TopicPartition, ...]) -> None:
        job()
        self._handover.drop(frozenset(partitions or self._consumer.assignment()))

    def _pause(self, partitions: tuple[TopicPartition, ...]) -> None:
        self._consumer.pause(partitions)
        self._seek_back(frozenset(partitions))

    def _given_out(self) -> dict[TopicPartition, OffsetAndMetadata] | None:
        """Return the positions to commit: a partition with waiting records is committed only up to the first of them.
        Returns None if no records wait. Then all positions of `Consumer` are committed."""
        waiting = self._handover.first_offsets()
        if not waiting:
            return None
        positions = {part: waiting.get(part, self._consumer.position(part)) for part in self._consumer.assignment()}
        return {part: OffsetAndMetadata(offset) for part, offset in positions.items() if offset is not None}

    def _position(self, partition: TopicPartition) -> int | None:
        position = self._consumer.position(partition)
        return self._handover.first_offsets().get(partition, position)

    def _lag(self, partition: TopicPartition) -> int | None:
        lag, position = self._consumer.lag(partition), self._consumer.position(partition)
        if lag is None or position is None:
            return None
        return lag + position - self._handover.first_offsets().get(partition, position)
