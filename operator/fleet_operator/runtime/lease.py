"""Leader election by a `coordination.k8s.io/v1` Lease: one process is active, the others are standbys.

The rules are client-go's. The holder renews the Lease. Another process may take over the Lease when the Lease has not
changed for a whole lease duration, measured *on its own monotonic clock*. Wall clocks of other machines are never
trusted. The renew deadline is shorter than the lease duration. A holder that cannot renew the Lease before this
deadline must stop, because another process may soon become active. The holder's process ends, so that no running call
can still write.

An `Elector` runs on a `LoopThread`. So a long step of the operator's event loop delays neither a renewal nor the
process's end after the loss of its Lease.
"""

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
"""Default name of the Lease. Releases in the same namespace need different names."""
SCOPE_LEASE: Final = "consumer-fleet-operator-scope"
SCOPE_NAMESPACE: Final = "kube-system"
"""Namespace of the Lease for the whole cluster. A namespace's Lease is in that namespace. kube-system always exists,
and only administrators may write to it. In `default`, many users have the role `edit`, which may write Leases."""

LEASE_SECONDS: Final = 15.0
RENEW_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 2.0
"""Lease duration, renew deadline and retry period, as in controller-runtime. Each of these times must be longer than
the next one."""

LONGEST_LEASE_SECONDS: Final = 4 * LEASE_SECONDS
"""Maximum lease duration that is accepted from another holder, which may have ended or be malicious. The limit does not
affect a running holder, because client-go renews a Lease several times in each duration."""
MOST_TRANSITIONS: Final = 2**31 - 1
"""Largest value of `leaseTransitions`, which is an int32; the API server refuses larger values."""

REMEDY: Final = "uninstall one of the two, or give each of them different namespaces (watch.namespaces)"


class LeaseLostError(Exception):
    """This process no longer holds the Lease and must end at once."""


class Elector:
    """This process as a candidate in a leader election. Call `acquire`, then `hold` in a separate task, then
    `release`."""

    def __init__(
        self, kube: KubeClient, clock: Clock, *, identity: str, namespace: str, name: str = LEASE_NAME, former: str = ""
    ) -> None:
        """`former` is a holder that is known to have ended; its Lease is taken over without waiting."""
        self._kube = kube
        self._clock = clock
        self._identity = identity
        self._namespace, self._name = namespace, name
        self._ended = former
        self._seen: JsonObject | None = None
        self._seen_at = 0.0
        self.refused = False
        """True while the API server refuses access to the Lease, because a permission or the namespace is missing."""
        self.answered = False
        """True if the API server answered the last attempt, so that the Lease's holder is known."""
        self.former = ""
        """The holder from which this process took over the Lease; empty if there was none."""

    async def acquire(self) -> None:
        """Wait until this process holds the Lease. After errors, retry indefinitely."""
        while not await self._try():  # noqa: ASYNC110 - the Lease can only be polled
            await asyncio.sleep(RETRY_SECONDS)
        log.info("lease acquired", extra={"identity": self._identity})

    async def hold(self) -> None:
        """Renew the Lease until renewals have failed for too long, then raise LeaseLostError. Never returns."""
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
                raise LeaseLostError("another process has taken over the Lease; this process ends")
            elif self._clock.monotonic() >= deadline:
                raise LeaseLostError(f"the Lease could not be renewed for {RENEW_SECONDS} s; this process ends")

    async def release(self) -> None:
        """Release the Lease, if it is held. A standby can then take over without waiting for the lease duration."""
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
        """Try once to acquire or renew the Lease. Returns True also if the API server refuses access to the Lease."""
        return await self._try() or self.refused

    async def rival(self) -> str | None:
        """Read the Lease without acquiring it. Returns the other process that holds it, if the Lease has not expired.
        Returns an empty string if no other process holds the Lease or access is refused, and None if the API server
        does not answer."""
        try:
            await self._read_lease()
        except (KubeForbiddenError, KubeNotFoundError):
            return ""
        except KubeError as error:
            log.warning("lease call failed", extra={"reason": error.reason, "error": str(error)})
            return None
        return "" if self._seen is None or self._intent() is not None else self.holder

    @property
    def holder(self) -> str:
        return str(self._seen["spec"].get("holderIdentity") or "") if self._seen is not None else ""

    @property
    def _holds(self) -> bool:
        return self.holder == self._identity

    async def _try(self) -> bool:
        self.refused, self.answered = False, True
        try:
            try:
                if not self._holds:  # the holder need not read: its replace fails if the Lease has changed
                    await self._read_lease()
                intent = self._intent()
                if intent is None:
                    return False
                self.former = self.former if self._holds else self.holder
                exists = "resourceVersion" in intent["metadata"]
                self._observe(await (self._kube.replace(intent) if exists else self._kube.create(intent)))
            except KubeConflictError:
                await self._read_lease()  # another process was faster, or the response to our own write was lost
                return False
        except KubeError as error:
            self.answered = False
            self.refused = isinstance(error, KubeForbiddenError | KubeNotFoundError)
            log.warning("lease call failed", extra={"reason": error.reason, "error": str(error)})
            return False
        return True

    async def _read_lease(self) -> None:
        self._observe(await self._kube.get(LEASE, self._namespace, self._name))

    def _observe(self, lease: JsonObject | None) -> None:
        """Record the Lease that was just read or written, and the time if its spec has changed. Only a changed spec
        proves that the holder still runs."""
        if lease is None or self._seen is None or lease["spec"] != self._seen["spec"]:
            self._seen_at = self._clock.monotonic()
        self._seen = lease

    def _intent(self) -> JsonObject | None:
        """The Lease to create, or to replace the existing Lease with; None while another process holds the Lease."""
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
    """The value of a field that another process wrote, if it is an integer above zero, otherwise None."""
    value = spec.get(field)
    return value if isinstance(value, int) and value > 0 else None


class Scope:
    """The Leases that keep different installations from serving the same namespaces. There is also the Lease by which
    the replicas of one release elect a leader.

    An installation holds one Lease for the whole cluster, or one Lease in each served namespace. An installation for
    the whole cluster has priority. If the API server refuses access to the Lease of a namespace, the namespace is
    served without a Lease. If another process (or an administrator) holds the Lease of a namespace, the namespace is
    left out. In both cases, other namespaces are not affected.
    """

    def __init__(
        self, kube: KubeClient, clock: Clock, *, identity: str, namespaces: Sequence[str], former: str = ""
    ) -> None:
        """`former`: this release's previous leader, which has ended. Identities contain the release's namespace."""

        def elector(namespace: str) -> Elector:
            return Elector(kube, clock, identity=identity, namespace=namespace, name=SCOPE_LEASE, former=former)

        self._clock = clock
        self._cluster = elector(SCOPE_NAMESPACE)
        self._own = {namespace: elector(namespace) for namespace in namespaces}

    async def acquire(self, told: Callable[[str], None]) -> tuple[str, ...]:
        """Wait until at least one namespace may be served; returns the namespaces to serve, or an empty tuple for all.
        `told` is called with a message while no namespace may be served, or if namespaces are left out."""
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
            if rival:  # otherwise the API server did not answer: retry
                where = f"Lease {SCOPE_NAMESPACE}/{SCOPE_LEASE} is held by {rival}"
                told(f"another installation serves the whole cluster: {where}; {REMEDY}")
            await asyncio.sleep(RETRY_SECONDS)

    async def _settled(self, elector: Elector) -> bool:
        """Return True when this process holds the Lease or is refused access. Return False if another process keeps
        renewing the Lease. After a failed call, the wait starts again, because False would leave out the namespace
        until the operator is restarted."""
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
        """Renew the Leases. Raises LeaseLostError if the whole cluster's Lease is lost or held by another
        installation."""
        if not self._own and not self._cluster.refused:
            await self._cluster.hold()
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            await asyncio.gather(*(elector.attempt() for elector in self._own.values() if not elector.refused))
            rival = await self._cluster.rival() if self._own else ""
            if rival:
                raise LeaseLostError(f"{rival} serves the whole cluster, including these namespaces; this process ends")

    async def release(self) -> None:
        for elector in (self._cluster, *self._own.values()):
            await elector.release()
