"""Leader election by a `coordination.k8s.io/v1` Lease: one process works, the others stand by.

The rules are those of client-go. A holder renews; whoever sees the same record unchanged for a whole lease duration
*on its own monotonic clock* may take it over (another machine's wall clock is never trusted); a holder that could not
renew before its renew deadline, which is shorter than the lease duration, must stop working, because somebody else may
start. Stopping means ending the process: nothing in flight can then write on.

An `Elector` makes its calls on a `LoopThread`: whatever takes long on the operator's own event loop must
neither hold up a renewal nor the end of a process that has lost its Lease.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Sequence
from typing import Final

from fleet_consumer.clock import Clock
from fleet_operator.clients.kinds import LEASE, JsonObject
from fleet_operator.clients.kube import KubeClient, KubeConflictError, KubeError, KubeForbiddenError, KubeNotFoundError
from fleet_operator.planning.times import to_micro_text

log = logging.getLogger(__name__)

LEASE_NAME: Final = "consumer-fleet-operator"
"""The default; each of several releases in one namespace has a Lease of its own."""
SCOPE_LEASE: Final = "consumer-fleet-operator-scope"
SCOPE_NAMESPACE: Final = "kube-system"
"""The place of the Lease for the whole cluster. Every cluster has this namespace, and administrators alone write there:
Kubernetes' own role edit may write Leases, and the namespace default is given away freely. That for one namespace is
in it."""

LEASE_SECONDS: Final = 15.0
RENEW_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 2.0
"""Lease duration, renew deadline and retry period, as in controller-runtime: each is longer than the next."""

LONGEST_LEASE_SECONDS: Final = 4 * LEASE_SECONDS
"""The longest silence that a found record can ask for: whoever wrote it may be gone, or mean harm. A living holder with
another lease duration changes the record well before that, as client-go renews several times in each duration."""
MOST_TRANSITIONS: Final = 2**31 - 1
"""The field is an int32, and the API server refuses a larger number."""

REMEDY: Final = "uninstall one of the two, or give them namespaces of their own (watch.namespaces)"


class LeaseLostError(Exception):
    """This process no longer holds the Lease and must end at once."""


class Elector:
    """Runs one process's part of the election. `acquire`, then `hold` as a task of its own, then `release`."""

    def __init__(
        self, kube: KubeClient, clock: Clock, *, identity: str, namespace: str, name: str = LEASE_NAME, former: str = ""
    ) -> None:
        """`former` is a holder that is known to have ended: nobody waits for it."""
        self._kube = kube
        self._clock = clock
        self._identity = identity
        self._namespace, self._name = namespace, name
        self._ended = former
        self._seen: JsonObject | None = None
        self._seen_at = 0.0
        self.refused = False
        """True while the API server grants no such Lease: by its rights, or as the namespace is not there."""
        self.answered = False
        """True if the last attempt has shown who holds the Lease."""
        self.former = ""
        """The holder that this process has succeeded."""

    async def acquire(self) -> None:
        """Return once this process holds the Lease; waits as long as that takes, through errors too."""
        while not await self._try():  # noqa: ASYNC110 - what is awaited is in the API server, not in this process
            await asyncio.sleep(RETRY_SECONDS)
        log.info("lease acquired", extra={"identity": self._identity})

    async def hold(self) -> None:
        """Renew for as long as possible; raises LeaseLostError when that has failed. Never returns."""
        renewed = self._clock.monotonic()
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            deadline = renewed + RENEW_SECONDS
            try:
                async with asyncio.timeout(max(deadline - self._clock.monotonic(), 0.0)):
                    held = await self._try()
            except TimeoutError:
                held = False
            if held:
                renewed = self._clock.monotonic()
            elif not self._holds:
                raise LeaseLostError("another process has taken over the Lease; this one ends")
            elif self._clock.monotonic() >= deadline:
                raise LeaseLostError(f"the Lease could not be renewed for {RENEW_SECONDS} s; this process ends")

    async def release(self) -> None:
        """Give the Lease up, if held, so that a standby takes over at once; failure only costs a lease duration."""
        if not self._holds or self._seen is None:
            return
        freed = copy.deepcopy(self._seen)
        renewed = to_micro_text(self._clock.wall())
        freed["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": renewed}
        try:
            self._observe(await self._kube.replace(freed))
            log.info("lease released")
        except KubeError as error:
            log.warning("lease not released", extra={"reason": error.reason, "error": str(error)})

    async def attempt(self) -> bool:
        """Take or renew the Lease once; also True where there can be none."""
        return await self._try() or self.refused

    async def rival(self) -> str | None:
        """The living holder of a Lease that this process does not take; empty without one, None without an answer."""
        try:
            await self._look()
        except (KubeForbiddenError, KubeNotFoundError):
            return ""
        except KubeError as error:
            log.warning("lease call failed", extra={"reason": error.reason, "error": str(error)})
            return None
        return "" if self._seen is None or self._intent() is not None else self.holder

    @property
    def holder(self) -> str:
        """The holder as last seen; empty without one."""
        return str(self._seen["spec"].get("holderIdentity") or "") if self._seen is not None else ""

    @property
    def _holds(self) -> bool:
        """True if the Lease, as last seen, names this process."""
        return self.holder == self._identity

    async def _try(self) -> bool:
        self.refused, self.answered = False, True
        try:
            try:
                if not self._holds:  # a holder knows the record; a replace fails if that was wrong
                    await self._look()
                intent = self._intent()
                if intent is None:
                    return False
                self.former = self.former if self._holds else self.holder
                exists = "resourceVersion" in intent["metadata"]
                self._observe(await (self._kube.replace(intent) if exists else self._kube.create(intent)))
            except KubeConflictError:
                await self._look()  # a lost race, or a lost reply: learn who holds the Lease now
                return False
        except KubeError as error:
            self.answered = False
            self.refused = isinstance(error, KubeForbiddenError | KubeNotFoundError)
            log.warning("lease call failed", extra={"reason": error.reason, "error": str(error)})
            return False
        return True

    async def _look(self) -> None:
        self._observe(await self._kube.get(LEASE, self._namespace, self._name))

    def _observe(self, lease: JsonObject | None) -> None:
        """Take in the Lease as read or written just now; only a changed record counts as a sign of life."""
        if lease is None or self._seen is None or lease["spec"] != self._seen["spec"]:
            self._seen_at = self._clock.monotonic()
        self._seen = lease

    def _intent(self) -> JsonObject | None:
        """The Lease to create (when none was seen) or to replace with; None while somebody else holds a live one."""
        if self._seen is None:
            return self._record({"name": self._name, "namespace": self._namespace}, {}, transitions=0)
        metadata, spec = self._seen["metadata"], self._seen["spec"]
        transitions = _natural(spec, "leaseTransitions") or 0
        if self._holds:
            return self._record(metadata, {"acquireTime": spec.get("acquireTime")}, transitions=transitions)
        duration = _natural(spec, "leaseDurationSeconds") or LEASE_SECONDS
        expires = self._seen_at + min(duration, LONGEST_LEASE_SECONDS)
        if self.holder not in ("", self._ended) and self._clock.monotonic() < expires:
            return None
        return self._record(metadata, {}, transitions=min(transitions + 1, MOST_TRANSITIONS))

    def _record(self, metadata: JsonObject, kept: JsonObject, *, transitions: int) -> JsonObject:
        now = to_micro_text(self._clock.wall())
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {k: metadata[k] for k in ("name", "namespace", "uid", "resourceVersion") if k in metadata},
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": int(LEASE_SECONDS),
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": transitions,
                **kept,
            },
        }


def _natural(spec: JsonObject, field: str) -> int | None:
    """A whole number above zero that somebody else has written; None if it is absent or unusable."""
    value = spec.get(field)
    return value if isinstance(value, int) and value > 0 else None


class Scope:
    """The Leases by which installations keep out of each other's way, besides that of a release's replicas.

    One for the whole cluster or one in each served namespace. Where a namespace has none to give, or its administrator
    holds it by hand, that costs no other namespace anything: it is left out, or served without one. An installation for
    the whole cluster goes before those for namespaces.
    """

    def __init__(
        self, kube: KubeClient, clock: Clock, *, identity: str, namespaces: Sequence[str], former: str = ""
    ) -> None:
        """`former` is the process of this release that has ended; both identities name the release's namespace."""

        def elector(namespace: str) -> Elector:
            return Elector(kube, clock, identity=identity, namespace=namespace, name=SCOPE_LEASE, former=former)

        self._clock = clock
        self._cluster = elector(SCOPE_NAMESPACE)
        self._own = {namespace: elector(namespace) for namespace in namespaces}

    async def acquire(self, told: Callable[[str], None]) -> tuple[str, ...]:
        """Return the namespaces that this installation may serve, none for all, once there are some.

        `told` is called with the reason while there are none, and for those that are left out.
        """
        while True:
            if not self._own:
                if await self._cluster.attempt():
                    return ()
                rival: str | None = self._cluster.holder
            elif (rival := await self._cluster.rival()) == "":
                found = await asyncio.gather(*map(self._settled, self._own.values()))
                taken = [name for name, free in zip(self._own, found, strict=True) if not free]
                if taken:
                    holders = ", ".join(f"{name} ({self._own[name].holder or 'nobody'})" for name in taken)
                    told(f"other installations serve these namespaces: {holders}; {REMEDY}")
                if len(taken) < len(self._own):
                    self._own = {name: held for name, held in self._own.items() if name not in taken}
                    return tuple(self._own)
                continue
            if rival:  # else the API server did not answer, which says nothing about installations: ask again
                where = f"Lease {SCOPE_NAMESPACE}/{SCOPE_LEASE} is held by {rival}"
                told(f"another installation serves the whole cluster: {where}; {REMEDY}")
            await asyncio.sleep(RETRY_SECONDS)

    async def _settled(self, elector: Elector) -> bool:
        """True once a Lease is ours, False if another one renews it.

        A namespace that is left out stays so until the next start, so failed calls do not count as another's renewals.
        """
        patience = LEASE_SECONDS + 2 * RETRY_SECONDS
        until = self._clock.monotonic() + patience
        while not await elector.attempt():
            now = self._clock.monotonic()
            if not elector.answered:
                until = now + patience
            elif now >= until:
                return False
            await asyncio.sleep(RETRY_SECONDS)
        return True

    async def hold(self) -> None:
        """Renew. Raises LeaseLostError when the whole cluster's is lost or held by another installation."""
        if not self._own and not self._cluster.refused:
            await self._cluster.hold()
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            await asyncio.gather(*(elector.attempt() for elector in self._own.values() if not elector.refused))
            rival = await self._cluster.rival() if self._own else ""
            if rival:
                raise LeaseLostError(f"{rival} serves the whole cluster, these namespaces too; this process ends")

    async def release(self) -> None:
        for elector in (self._cluster, *self._own.values()):
            await elector.release()
