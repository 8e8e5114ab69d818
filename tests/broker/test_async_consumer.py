"""The consumer for asyncio on a real broker: a cancelled task loses nothing, and the event loop is never blocked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from fleet_consumer import AsyncConsumer, OffsetAndMetadata, TopicPartition, errors
from tests.broker.members import committed, create_topic, produce, settings, unique
from tests.support.kafka import KafkaBroker

PATIENCE_S = 240.0


def topic_of(broker: KafkaBroker, partitions: int, each: int) -> str:
    topic = create_topic(broker.bootstrap, partitions)
    produce(broker.bootstrap, topic, partitions, each)
    return topic


async def test_iteration_yields_every_record_and_commits_cover_them(broker: KafkaBroker) -> None:
    topic, group = topic_of(broker, 1, 20), unique("group")
    async with asyncio.timeout(PATIENCE_S), AsyncConsumer(settings(broker.bootstrap, group)) as consumer:
        await consumer.subscribe([topic])
        seen = []
        async for record in consumer:
            seen.append(record.offset)
            if record.offset == 7:
                # One poll has returned all of them.
                await consumer.commit()
                assert await consumer.committed([TopicPartition(topic, 0)]) == {
                    TopicPartition(topic, 0): OffsetAndMetadata(8)
                }
                assert await consumer.position(TopicPartition(topic, 0)) == 8
            if record.offset == 19:
                break
        assert seen == list(range(20))


async def test_records_of_cancelled_polls_come_out_later_and_commits_pass_over_none(broker: KafkaBroker) -> None:
    topic, group = topic_of(broker, 2, 3000), unique("group")
    seen: list[tuple[int, int]] = []
    async with asyncio.timeout(PATIENCE_S), AsyncConsumer(settings(broker.bootstrap, group)) as consumer:
        await consumer.subscribe([topic])
        patience = 0.0
        while len(seen) < 4000:
            patience = (patience + 0.0007) % 0.02
            polling = asyncio.ensure_future(consumer.poll(5.0, max_records=37))
            await asyncio.wait((polling,), timeout=patience)
            if polling.cancel():
                await asyncio.wait((polling,))
            if not polling.cancelled():
                seen += [(record.partition, record.offset) for record in polling.result()]
            if len(seen) % 5 == 0:
                await consumer.commit()
                given = {number: max([o + 1 for p, o in seen if p == number], default=0) for number in (0, 1)}
                stored = await consumer.committed([TopicPartition(topic, number) for number in (0, 1)])
                assert {part.partition: entry.offset for part, entry in stored.items() if entry} == {
                    part.partition: given[part.partition] for part, entry in stored.items() if entry
                }
    assert len(seen) == len(set(seen))
    for number in (0, 1):
        offsets = [offset for partition, offset in seen if partition == number]
        assert offsets == list(range(len(offsets)))


async def test_closing_commits_nothing_that_only_a_cancelled_poll_brought(broker: KafkaBroker) -> None:
    topic, group = topic_of(broker, 1, 50), unique("group")
    async with asyncio.timeout(PATIENCE_S):
        async with AsyncConsumer(settings(broker.bootstrap, group, auto_commit_interval_ms=60_000)) as consumer:
            await consumer.subscribe([topic])
            async for record in consumer:
                if record.offset == 9:
                    break
    assert committed(broker.bootstrap, group, topic, 1) == {0: 10}


async def test_callbacks_may_be_coroutines_that_commit_and_seek(broker: KafkaBroker) -> None:
    topic, group = topic_of(broker, 2, 10), unique("group")
    calls: list[tuple[str, int]] = []
    consumer = AsyncConsumer(settings(broker.bootstrap, group))

    async def assigned(partitions: Sequence[TopicPartition]) -> None:
        await asyncio.sleep(0)
        for part in partitions:
            await consumer.seek(part, 5)
        with pytest.raises(errors.ConcurrentUse, match="callbacks may not call poll"):
            await consumer.poll(0)
        calls.append(("assigned", len(partitions)))

    async def revoked(partitions: Sequence[TopicPartition]) -> None:
        await consumer.commit()
        calls.append(("revoked", len(partitions)))

    async with asyncio.timeout(PATIENCE_S), consumer:
        await consumer.subscribe(
            [topic], on_assigned=assigned, on_revoked=revoked, on_lost=lambda parts: calls.append(("lost", len(parts)))
        )
        seen: set[tuple[int, int]] = set()
        while len(seen) < 10:
            seen |= {(record.partition, record.offset) for record in await consumer.poll(1.0)}
        assert seen == {(number, offset) for number in (0, 1) for offset in range(5, 10)}
    assert calls == [("assigned", 2), ("revoked", 2)]
    assert committed(broker.bootstrap, group, topic, 2) == {0: 10, 1: 10}


async def test_error_of_a_callback_is_raised_by_poll(broker: KafkaBroker) -> None:
    topic = topic_of(broker, 1, 1)

    async def assigned(_partitions: Sequence[TopicPartition]) -> None:
        raise LookupError("no table")

    async with asyncio.timeout(PATIENCE_S), AsyncConsumer(settings(broker.bootstrap, unique("group"))) as consumer:
        await consumer.subscribe([topic], on_assigned=assigned)
        with pytest.raises(LookupError, match="no table"):
            await consumer.poll(60.0)


async def test_waiting_poll_holds_up_neither_the_event_loop_nor_other_calls(broker: KafkaBroker) -> None:
    topic = topic_of(broker, 1, 0)
    part = TopicPartition(topic, 0)
    async with asyncio.timeout(PATIENCE_S), AsyncConsumer(settings(broker.bootstrap, None)) as consumer:
        await consumer.assign([part])
        waiting = asyncio.ensure_future(consumer.poll(3600.0))
        for _ in range(20):
            assert await consumer.end_offsets([part]) == {part: 0}
        assert not waiting.done()
        with pytest.raises(errors.ConcurrentUse, match="another task polls"):
            await consumer.poll(0)
        consumer.wakeup()
        assert not await waiting


async def test_iteration_ends_when_another_task_closes_the_consumer(broker: KafkaBroker) -> None:
    topic = topic_of(broker, 1, 3)
    consumer = AsyncConsumer(settings(broker.bootstrap, unique("group")))
    await consumer.subscribe([topic])
    seen: list[int] = []
    third = asyncio.Event()

    async def iterate() -> None:
        async for record in consumer:
            seen.append(record.offset)
            if record.offset == 2:
                third.set()

    async with asyncio.timeout(PATIENCE_S):
        task = asyncio.ensure_future(iterate())
        await third.wait()
        await consumer.close()
        await task
    assert seen == [0, 1, 2]
    await consumer.close()
    with pytest.raises(errors.ConsumerClosed):
        await consumer.poll(0)


async def test_pause_and_seek_apply_to_polled_records_not_yet_taken(
    broker: KafkaBroker,
) -> None:
    topic = topic_of(broker, 2, 10)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with asyncio.timeout(PATIENCE_S), AsyncConsumer(settings(broker.bootstrap, None)) as consumer:
        await consumer.assign([zero])
        first = await anext(consumer)
        assert first.offset == 0
        await consumer.pause([zero])
        assert await consumer.position(zero) == 1
        assert not await consumer.poll(0.5)
        await consumer.resume([zero])
        assert (await anext(consumer)).offset == 1
        await consumer.seek(zero, 8)
        assert [(await anext(consumer)).offset for _ in range(2)] == [8, 9]
        await consumer.seek_to_beginning()
        assert (await anext(consumer)).offset == 0
        await consumer.assign([zero, one])
        assert await consumer.position(zero) == 1
