"""Events: each once, repeats counted, trouble in posting never reaches a reconcile."""

from __future__ import annotations

import asyncio

from fleet_operator.clients.kube import KubeUnavailableError
from fleet_operator.runtime.events import Event, EventRecorder, Posted, admit
from fleet_operator.runtime.metrics import Metrics
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

ABOUT = {
    "apiVersion": "consumerfleet.io/v1alpha1",
    "kind": "ConsumerGroup",
    "metadata": {"namespace": "ns", "name": "orders", "uid": "u1"},
}
EVENT = Event(ABOUT, "Warning", "TopicNotFound", "topic `orders` does not exist")


def test_first_event_is_posted_and_repeats_become_a_count() -> None:
    async def main() -> MemoryKube:
        kube = MemoryKube()
        recorder = EventRecorder(kube, VirtualClock(asyncio.get_running_loop()), Metrics(), instance="pod-1")
        recorder.start()
        for _ in range(30):
            recorder.record(EVENT)
            await asyncio.sleep(10.0)
        await recorder.stop()
        return kube

    kube = run_virtual(main())
    (event,) = kube.objects.values()
    assert event["series"]["count"] == 25
    assert event["reason"] == "TopicNotFound"
    assert event["regarding"]["uid"] == "u1"
    assert len(kube.writes) == 5, "five minutes of repeats are written at most once a minute"


def test_event_that_recurs_after_long_is_a_new_one() -> None:
    known = dict[str, Posted]()
    first = admit(known, "x", 0.0)
    again = admit(known, "x", 601.0)
    assert first
    assert again
    assert (again.count, again.first_at) == (1, 601.0)


def test_failed_post_is_counted_and_the_next_event_still_goes_out() -> None:
    async def main() -> tuple[MemoryKube, Metrics]:
        kube, metrics = MemoryKube(), Metrics()
        recorder = EventRecorder(kube, VirtualClock(asyncio.get_running_loop()), metrics, instance="pod-1")

        def cut(verb: str, kind: str, name: str) -> None:
            raise KubeUnavailableError("away")

        kube.before = cut
        recorder.start()
        recorder.record(EVENT)
        await asyncio.sleep(1.0)
        kube.before = lambda verb, kind, name: None
        recorder.record(Event(ABOUT, "Normal", "Stable", "all is well"))
        await asyncio.sleep(1.0)
        await recorder.stop()
        return kube, metrics

    kube, metrics = run_virtual(main())
    assert [event["reason"] for event in kube.objects.values()] == ["Stable"]
    assert b'consumer_fleet_operator_events_total{outcome="failed"} 1.0' in metrics.text()


def test_flood_of_events_is_dropped_not_queued_for_ever() -> None:
    async def main() -> Metrics:
        metrics = Metrics()
        recorder = EventRecorder(MemoryKube(), VirtualClock(asyncio.get_running_loop()), metrics, instance="pod-1")
        for number in range(1500):
            recorder.record(Event(ABOUT, "Normal", "Flood", f"event {number}"))
        return metrics

    assert b'consumer_fleet_operator_events_total{outcome="dropped"} 500.0' in run_virtual(main()).text()
