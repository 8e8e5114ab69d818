"""Identity and permissions of viewers: TokenReviews and SubjectAccessReviews, with bounded caches.

The API server decides both, so the console shows nobody more than `kubectl get` does. Its answers are kept for
TOKEN_SECONDS and ACCESS_SECONDS. A token that is revoked, or a permission that is withdrawn, therefore counts for at
most this time. If the API server does not answer, nobody sees anything: KubeUnavailableError reaches the server.
"""

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Generic, TypeVar

from fleet_consumer.clock import Clock
from fleet_operator.clients.kinds import SUBJECT_ACCESS_REVIEW, TOKEN_REVIEW, JsonObject, Kind

TOKEN_SECONDS: Final = 60.0
ACCESS_SECONDS: Final = 10.0
TOKENS_MAX: Final = 10_000
ANSWERS_MAX: Final = 50_000
TOKEN_CHARACTERS_MAX: Final = 16_384
"""Limit of a token. Tokens of identity providers with many groups have some kilobytes."""
REVIEWS_AT_ONCE_MAX: Final = 8
"""TokenReviews at the same time, and as many SubjectAccessReviews, so that guesses of tokens hold up nobody."""
KNOWN_SECONDS: Final = 86_400.0
"""Time after which a token that was valid counts as unknown again."""
REFUSALS_MAX: Final = 30
"""Largest number of refused tokens within REFUSAL_SECONDS. Beyond it, unknown tokens must wait, so that nobody makes
the operator flood the API server with guesses."""
REFUSAL_SECONDS: Final = 10.0
NAMESPACES_MAX: Final = 100
"""Namespaces that are checked one by one for a viewer who may not list all."""
QUESTIONS_MAX: Final = 300
"""Largest number of SubjectAccessReviews for one viewer in ACCESS_SECONDS: three lists of all namespaces."""
LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A name that a namespace can have."""

Value = TypeVar("Value")
Review = Callable[[Kind, JsonObject], Awaitable[JsonObject]]


class TooManyAttemptsError(Exception):
    """Too many tokens were refused lately, or one viewer needs too many reviews: further ones must wait."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """The user of a token, as the API server named it. `extra` are further attributes, which authorizers may use."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Expiring(Generic[Value]):
    """A cache of at most `most` values, each kept for `seconds`. The value that was stored first gives way. Expired
    values leave when another one is stored."""

    def __init__(self, clock: Clock, seconds: float, most: int) -> None:
        self._clock, self._seconds, self._most = clock, seconds, most
        self._values: OrderedDict[Hashable, tuple[float, Value]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def find(self, key: Hashable) -> tuple[Value] | None:
        """The value of a key, in a tuple, because None can be a value; None if there is none."""
        found = self._values.get(key)
        if found is None or found[0] <= self._clock.monotonic():
            return None
        return (found[1],)

    def keep(self, key: Hashable, value: Value) -> None:
        now = self._clock.monotonic()
        self._values.pop(key, None)
        self._values[key] = (now + self._seconds, value)
        while len(self._values) > self._most or next(iter(self._values.values()))[0] <= now:
            self._values.popitem(last=False)

    def drop(self, key: Hashable) -> None:
        self._values.pop(key, None)


class Access:
    """Answers of the API server about tokens and permissions. Used on one event loop."""

    def __init__(
        self, review: Review, clock: Clock, *, token_s: float = TOKEN_SECONDS, access_s: float = ACCESS_SECONDS
    ) -> None:
        self._review = review
        self._clock = clock
        self._viewers = Expiring[Viewer | None](clock, token_s, TOKENS_MAX)
        self._answers = Expiring[bool](clock, access_s, ANSWERS_MAX)
        self._questions = Expiring[Iterator[int]](clock, access_s, TOKENS_MAX)
        self._known = Expiring[bool](clock, KNOWN_SECONDS, TOKENS_MAX)
        self._token_slots = asyncio.Semaphore(REVIEWS_AT_ONCE_MAX)
        self._answer_slots = asyncio.Semaphore(REVIEWS_AT_ONCE_MAX)
        self._trying = 0
        self._asking: dict[Hashable, asyncio.Future[Any]] = {}
        self._refusals: list[float] = []

    async def viewer_of(self, token: str) -> Viewer | None:
        """The user of a token; None if the API server refuses it. Raises KubeError and TooManyAttemptsError."""
        if not token or len(token) > TOKEN_CHARACTERS_MAX or not token.isascii() or not token.isprintable():
            return None
        digest = hashlib.sha256(token.encode()).digest()  # the cache does not keep tokens
        found = self._viewers.find(digest)
        if found is not None:
            return found[0]
        if self._known.find(digest) is None:
            self._require_few_refusals()
        return await self._once(digest, self._token_slots, lambda: self._try(digest, token))

    def _require_few_refusals(self) -> None:
        """Raise TooManyAttemptsError if the unknown tokens that were refused lately, or are under review, are many."""
        now = self._clock.monotonic()
        self._refusals = [at for at in self._refusals if at > now - REFUSAL_SECONDS]
        if len(self._refusals) + self._trying >= REFUSALS_MAX:
            raise TooManyAttemptsError(
                f"{REFUSALS_MAX} tokens were refused within {REFUSAL_SECONDS:.0f} s: try again later"
            )

    async def _try(self, digest: bytes, token: str) -> Viewer | None:
        """Review a token. Tokens that were valid before are exempt from the limit of refusals, because otherwise
        guesses would sign everybody out."""
        if self._known.find(digest) is not None:
            return await self._authenticate(digest, token)
        self._require_few_refusals()  # again, because others were refused while this one waited
        self._trying += 1
        try:
            return await self._authenticate(digest, token)
        finally:
            self._trying -= 1

    async def _authenticate(self, digest: bytes, token: str) -> Viewer | None:
        status = await self._review(TOKEN_REVIEW, {"token": token})
        user = status.get("user") or {}
        viewer = None
        if status.get("authenticated") is True and user.get("username"):
            extra = tuple((name, tuple(values)) for name, values in sorted((user.get("extra") or {}).items()))
            viewer = Viewer(user["username"], user.get("uid", ""), tuple(user.get("groups") or ()), extra)
            self._known.keep(digest, True)
        else:
            self._known.drop(digest)
            self._refusals.append(self._clock.monotonic())
        self._viewers.keep(digest, viewer)
        return viewer

    async def may(self, viewer: Viewer, verb: str, kind: Kind, namespace: str) -> bool:
        """True if the viewer may do this to objects of a kind in a namespace; empty: in all. Nobody may in a namespace
        that cannot exist. Raises KubeError and TooManyAttemptsError."""
        if namespace and LABEL.fullmatch(namespace) is None:
            return False
        question = (viewer, verb, kind, namespace)
        found = self._answers.find(question)
        if found is not None:
            return found[0]
        if question not in self._asking:
            self._count(viewer)
        return await self._once(question, self._answer_slots, lambda: self._authorize(*question))

    def _count(self, viewer: Viewer) -> None:
        """Count a question about a viewer. Raises TooManyAttemptsError."""
        found = self._questions.find(viewer)
        counter = found[0] if found is not None else count()
        if found is None:
            self._questions.keep(viewer, counter)
        if next(counter) >= QUESTIONS_MAX:
            raise TooManyAttemptsError(f"{QUESTIONS_MAX} permissions were checked for you: try again in ten seconds")

    async def _authorize(self, viewer: Viewer, verb: str, kind: Kind, namespace: str) -> bool:
        action = {"verb": verb, "group": kind.group, "version": kind.version, "resource": kind.plural}
        spec = {
            "user": viewer.name,
            "uid": viewer.uid,
            "groups": list(viewer.groups),
            "extra": {name: list(values) for name, values in viewer.extra},
            "resourceAttributes": action | ({"namespace": namespace} if namespace else {}),
        }
        status = await self._review(SUBJECT_ACCESS_REVIEW, spec)
        allowed = status.get("allowed") is True and status.get("denied") is not True
        self._answers.keep((viewer, verb, kind, namespace), allowed)
        return allowed

    async def readable(self, viewer: Viewer, kind: Kind, namespaces: Iterable[str]) -> frozenset[str] | None:
        """The namespaces whose objects of a kind the viewer may list, of the first NAMESPACES_MAX that are given; None
        for all namespaces. Raises KubeError."""
        if await self.may(viewer, "list", kind, ""):
            return None
        asked = sorted(set(namespaces))[:NAMESPACES_MAX]
        answers = await asyncio.gather(*(self.may(viewer, "list", kind, name) for name in asked))
        return frozenset(name for name, allowed in zip(asked, answers, strict=True) if allowed)

    async def _once(self, key: Hashable, slots: asyncio.Semaphore, ask: Callable[[], Awaitable[Value]]) -> Value:
        """Ask once for all who ask at the same time. The question goes on if one of them is cancelled."""
        asking: asyncio.Future[Value] | None = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.ensure_future(_bounded(slots, ask))
            asking.add_done_callback(lambda done: (self._asking.pop(key, None), done.cancelled() or done.exception()))
        return await asyncio.shield(asking)


async def _bounded(slots: asyncio.Semaphore, ask: Callable[[], Awaitable[Value]]) -> Value:
    async with slots:
        return await ask()
