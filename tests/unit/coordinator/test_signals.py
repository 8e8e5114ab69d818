"""A signal handler runs on the thread that it interrupts, wherever that stands; `Consumer.wakeup` allows for it."""

from __future__ import annotations

import threading

from fleet_consumer import Consumer, ConsumerSettings
from fleet_consumer.consumer.engine import Latch
from fleet_consumer.net import ConnectionSettings


def ends(run: threading.Thread) -> bool:
    run.start()
    run.join(10)
    return not run.is_alive()


def test_latch_may_be_set_while_its_own_thread_is_inside_it() -> None:
    latch = Latch()

    def interrupted() -> None:
        with latch._cond:  # where `clear` and `wait` stand when the signal comes
            latch.set()

    assert ends(threading.Thread(target=interrupted, daemon=True))
    assert latch.is_set()


def test_latch_wakes_its_waiter() -> None:
    latch = Latch()
    waits = threading.Thread(target=latch.wait, daemon=True)
    latch.set()
    assert ends(waits)
    latch.clear()
    assert not latch.wait(0.01)


def test_wakeup_from_a_handler_does_not_hang_the_poll_that_it_interrupts() -> None:
    connection = ConnectionSettings(bootstrap_servers=("localhost:1",), client_id="c")
    consumer = Consumer(ConsumerSettings(connection=connection, group_id="g"))

    def interrupted() -> None:
        with consumer._engine.signal._cond:
            consumer.wakeup()

    assert ends(threading.Thread(target=interrupted, daemon=True))
    consumer.close()
