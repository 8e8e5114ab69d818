"""Election: one holder at a time, taken over only after silence, given up on a clean stop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fleet_operator.clients.kinds import LEASE, JsonObject, Kind
from fleet_operator.clients.kube import KubeError, KubeForbiddenError, KubeInvalidError, KubeUnavailableError
from fleet_operator.runtime.lease import (
    LEASE_NAME,
    LEASE_SECONDS,
    LONGEST_LEASE_SECONDS,
    MOST_TRANSITIONS,
    SCOPE_LEASE,
    Elector,
    LeaseLostError,
    Scope,
)
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

NAMESPACE = "system"


def elector(kube: MemoryKube, identity: str) -> Elector:
    clock = VirtualClock(asyncio.get_running_loop())
    return Elector(kube, clock, identity=identity, namespace=NAMESPACE)


def test_releases_in_one_namespace_have_a_lease_each() -> None:
    """They shared one, and the second release's operators all stood by."""

    async def scene() -> None:
        kube = MemoryKube()
        clock = VirtualClock(asyncio.get_running_loop())
        for name in ("east-operator", "west-operator"):
            await Elector(kube, clock, identity=f"{name}-0", namespace=NAMESPACE, name=name).acquire()
            assert kube.objects[LEASE.kind, NAMESPACE, name]["spec"]["holderIdentity"] == f"{name}-0"
        assert (LEASE.kind, NAMESPACE, LEASE_NAME) not in kube.objects

    run_virtual(scene())


def holder(kube: MemoryKube) -> str:
    return str(kube.objects[LEASE.kind, NAMESPACE, LEASE_NAME]["spec"]["holderIdentity"])


def now() -> float:
    return asyncio.get_running_loop().time()


def test_first_process_acquires_at_once() -> None:
    async def main() -> float:
        kube, began = MemoryKube(), now()
        await elector(kube, "one").acquire()
        assert holder(kube) == "one"
        return now() - began

    assert run_virtual(main()) == 0.0


def test_standby_waits_while_the_holder_renews() -> None:
    async def main() -> None:
        kube = MemoryKube()
        first, second = elector(kube, "one"), elector(kube, "two")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        standing_by = asyncio.create_task(second.acquire())
        await asyncio.sleep(300.0)
        assert not standing_by.done()
        assert holder(kube) == "one"
        holding.cancel()
        standing_by.cancel()

    run_virtual(main())


def test_dead_holder_is_succeeded_after_one_lease_duration() -> None:
    async def main() -> float:
        kube = MemoryKube()
        await elector(kube, "one").acquire()  # and never renews again
        began = now()
        await elector(kube, "two").acquire()
        assert holder(kube) == "two"
        assert kube.objects[LEASE.kind, NAMESPACE, LEASE_NAME]["spec"]["leaseTransitions"] == 1
        return now() - began

    assert 15.0 <= run_virtual(main()) <= 17.0


async def strange(kube: MemoryKube, **spec: Any) -> None:
    """A Lease that another program, or somebody by hand, has written."""
    await elector(kube, "one").acquire()
    lease = kube.objects[LEASE.kind, NAMESPACE, LEASE_NAME]
    await kube.replace({**lease, "spec": {**lease["spec"], "holderIdentity": "stranger", **spec}})


@pytest.mark.parametrize(
    ("claimed", "waited_s"),
    [
        (5, 5.0),
        (40, 40.0),
        (2**31 - 1, LONGEST_LEASE_SECONDS),
        (0, LEASE_SECONDS),
        (-3, LEASE_SECONDS),
        (None, LEASE_SECONDS),
        ("long", LEASE_SECONDS),
    ],
)
def test_silent_holder_is_waited_for_as_long_as_it_asks_for_within_a_bound(claimed: Any, waited_s: float) -> None:
    """A record that claimed 68 years held up every operator for that long; a text ended the process."""

    async def main() -> float:
        kube = MemoryKube()
        await strange(kube, leaseDurationSeconds=claimed)
        began = now()
        await elector(kube, "two").acquire()
        return now() - began

    assert waited_s <= run_virtual(main()) <= waited_s + 2.0


def test_holder_with_a_longer_lease_duration_keeps_it_while_it_renews() -> None:
    async def main() -> None:
        kube = MemoryKube()
        await strange(kube, leaseDurationSeconds=600)
        standing_by = asyncio.create_task(elector(kube, "two").acquire())
        for renewal in range(20):
            await asyncio.sleep(LONGEST_LEASE_SECONDS - 5)
            lease = kube.objects[LEASE.kind, NAMESPACE, LEASE_NAME]
            await kube.replace({**lease, "spec": {**lease["spec"], "renewTime": f"renewal {renewal}"}})
        assert holder(kube) == "stranger"
        assert not standing_by.done()
        standing_by.cancel()

    run_virtual(main())


@pytest.mark.parametrize(("found", "written"), [(MOST_TRANSITIONS, MOST_TRANSITIONS), ("many", 1), (-1, 1), (3, 4)])
def test_lease_with_any_number_of_transitions_is_taken_over(found: Any, written: int) -> None:
    """The API server refuses a number that is no int32, so a Lease that had the largest one was never taken."""

    async def main() -> None:
        kube = MemoryKube()
        await strange(kube, leaseTransitions=found)
        await elector(kube, "two").acquire()
        assert kube.objects[LEASE.kind, NAMESPACE, LEASE_NAME]["spec"]["leaseTransitions"] == written

    run_virtual(main())


def test_released_lease_is_taken_within_one_retry() -> None:
    async def main() -> float:
        kube = MemoryKube()
        first, second = elector(kube, "one"), elector(kube, "two")
        await first.acquire()
        standing_by = asyncio.create_task(second.acquire())
        await asyncio.sleep(5.0)
        began = now()
        await first.release()
        await standing_by
        return now() - began

    assert run_virtual(main()) <= 2.0


def test_holder_that_cannot_renew_ends_before_the_standby_may_start() -> None:
    async def main() -> float:
        kube = MemoryKube()
        first = elector(kube, "one")
        await first.acquire()

        def cut(verb: str, kind: str, name: str) -> None:
            raise KubeUnavailableError("no route")

        kube.before = cut
        began = now()
        with pytest.raises(LeaseLostError):
            await first.hold()
        return now() - began

    assert 10.0 <= run_virtual(main()) < 15.0


def test_holder_with_a_hanging_call_ends_before_the_standby_may_start() -> None:
    class Hanging(MemoryKube):
        async def replace(self, body: dict[str, object]) -> dict[str, object]:
            await asyncio.sleep(3600.0)
            return body

    async def main() -> float:
        kube = Hanging()
        first = elector(kube, "one")
        await first.acquire()
        began = now()
        with pytest.raises(LeaseLostError):
            await first.hold()
        return now() - began

    assert 10.0 <= run_virtual(main()) < 15.0


def test_holder_that_was_replaced_ends() -> None:
    async def main() -> float:
        kube = MemoryKube()
        first = elector(kube, "one")
        await first.acquire()
        stolen = await kube.get(LEASE, NAMESPACE, LEASE_NAME)
        assert stolen
        stolen["spec"]["holderIdentity"] = "two"
        await kube.replace(stolen)
        began = now()
        with pytest.raises(LeaseLostError, match="another process"):
            await first.hold()
        return now() - began

    assert run_virtual(main()) <= 2.0


def test_lost_reply_to_a_renewal_does_not_lose_the_lease() -> None:
    """The write happened, its answer did not arrive: the next renewal conflicts with our own write."""

    async def main() -> None:
        kube = MemoryKube()
        first = elector(kube, "one")
        await first.acquire()
        written = kube.replace
        lost: list[bool] = []

        async def lossy(body: dict[str, object]) -> dict[str, object]:
            answer = await written(body)
            if not lost:
                lost.append(True)
                raise KubeUnavailableError("reply lost")
            return answer

        kube.replace = lossy  # type: ignore[method-assign]
        holding = asyncio.create_task(first.hold())
        await asyncio.sleep(60.0)
        assert not holding.done()
        assert lost
        assert holder(kube) == "one"
        holding.cancel()

    run_virtual(main())


def test_api_server_that_is_away_at_start_is_waited_for() -> None:
    async def main() -> None:
        kube = MemoryKube()

        def cut(verb: str, kind: str, name: str) -> None:
            raise KubeUnavailableError("no route")

        kube.before = cut
        acquiring = asyncio.create_task(elector(kube, "one").acquire())
        await asyncio.sleep(60.0)
        assert not acquiring.done()
        kube.before = lambda verb, kind, name: None
        await acquiring

    run_virtual(main())


def scope(kube: MemoryKube, identity: str, *namespaces: str, former: str = "") -> Scope:
    clock = VirtualClock(asyncio.get_running_loop())
    return Scope(kube, clock, identity=identity, namespaces=namespaces, former=former)


def test_second_installation_for_the_whole_cluster_waits_and_says_for_whom() -> None:
    async def main() -> None:
        kube, told = MemoryKube(), list[str]()
        first, second = scope(kube, "a/one"), scope(kube, "b/two")
        assert await first.acquire(told.append) == ()
        holding = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire(told.append))
        await asyncio.sleep(600)
        assert not waiting.done()
        assert "held by a/one" in told[0]
        assert "uninstall one of the two" in told[0]
        holding.cancel()
        await first.release()
        assert await waiting == ()

    run_virtual(main())


def test_lease_for_the_whole_cluster_is_where_tenants_write_none() -> None:
    """It was in the namespace default, in which anybody with Kubernetes' role edit could hold it."""

    async def main() -> None:
        kube, told = MemoryKube(), list[str]()
        await scope(kube, "a/one").acquire(told.append)
        assert list(kube.objects) == [(LEASE.kind, "kube-system", SCOPE_LEASE)]

    run_virtual(main())


def test_namespace_that_another_installation_serves_is_left_out_and_costs_no_other_anything() -> None:
    async def main() -> None:
        kube, told = MemoryKube(), list[str]()
        theirs = scope(kube, "b/two", "bank")
        assert await theirs.acquire(told.append) == ("bank",)
        holding = asyncio.create_task(theirs.hold())
        assert await scope(kube, "a/one", "shop", "bank").acquire(told.append) == ("shop",)
        assert "bank (b/two)" in told[0]
        holding.cancel()

    run_virtual(main())


def test_namespace_without_a_lease_to_give_is_served_without_one() -> None:
    class Forbidding(MemoryKube):
        async def get(self, kind: Kind, namespace: str, name: str) -> JsonObject | None:
            if namespace != "shop":
                raise KubeForbiddenError("no", status=403)
            return await super().get(kind, namespace, name)

    async def main() -> None:
        kube, told = Forbidding(), list[str]()
        assert await scope(kube, "a/one", "shop", "bank").acquire(told.append) == ("shop", "bank")
        assert await scope(kube, "a/one").acquire(told.append) == ()
        assert told == []

    run_virtual(main())


def test_installation_for_the_whole_cluster_goes_before_those_for_namespaces() -> None:
    async def main() -> None:
        kube, told = MemoryKube(), list[str]()
        narrow, wide = scope(kube, "b/two", "shop"), scope(kube, "a/one")
        await narrow.acquire(told.append)
        holding = asyncio.create_task(narrow.hold())
        await asyncio.sleep(60)
        await wide.acquire(told.append)
        serving = asyncio.create_task(wide.hold())
        with pytest.raises(LeaseLostError, match="a/one serves the whole cluster"):
            await holding
        again = asyncio.create_task(narrow.acquire(told.append))
        await asyncio.sleep(60)
        assert not again.done()
        assert "serves the whole cluster" in told[0]
        for task in (again, serving):
            task.cancel()

    run_virtual(main())


@pytest.mark.parametrize(
    "answer",
    [
        KubeUnavailableError("slow down", status=429, retry_after=1.0),
        KubeUnavailableError("no leader", status=503),
        KubeUnavailableError("TimeoutError"),
        KubeInvalidError("the answer cannot be read"),
    ],
    ids=["429", "503", "timeout", "unreadable"],
)
def test_installation_for_namespaces_asks_again_when_the_api_server_does_not_answer_at_its_start(
    answer: KubeError,
) -> None:
    """One such answer ended the process."""

    async def main() -> None:
        kube, told = MemoryKube(), list[str]()
        wide = scope(kube, "a/one")
        await wide.acquire(told.append)
        failures = [answer]

        def fail(verb: str, kind: str, name: str) -> None:
            if verb == "get" and failures:
                raise failures.pop()

        kube.before = fail
        serving = asyncio.create_task(wide.hold())
        waiting = asyncio.create_task(scope(kube, "b/two", "shop").acquire(told.append))
        await asyncio.sleep(1)
        assert (failures, told) == ([], []), "unknown is neither another installation nor none"
        await asyncio.sleep(60)
        assert not waiting.done()
        assert "held by a/one" in told[0]
        serving.cancel()
        await wide.release()
        assert await waiting == ("shop",)

    run_virtual(main())


def test_namespace_is_not_left_out_because_calls_about_its_lease_fail() -> None:
    """Nineteen seconds of failed calls counted as another installation, until the next start."""

    async def main() -> None:
        kube, told = MemoryKube(), list[str]()
        answers_at = now() + 60

        def fail(verb: str, kind: str, name: str) -> None:
            if now() < answers_at and verb in ("create", "replace"):
                raise KubeUnavailableError("no leader", status=503)

        kube.before = fail
        assert await scope(kube, "a/one", "shop", "bank").acquire(told.append) == ("shop", "bank")
        assert told == []
        assert now() < answers_at + 10

    run_virtual(main())


def test_next_process_of_a_release_need_not_wait_for_the_one_that_it_has_succeeded() -> None:
    async def main() -> None:
        kube, told = MemoryKube(), list[str]()
        await scope(kube, "a/dead").acquire(told.append)
        before = asyncio.get_running_loop().time()
        await scope(kube, "a/next", former="a/dead").acquire(told.append)
        assert asyncio.get_running_loop().time() == before

    run_virtual(main())
