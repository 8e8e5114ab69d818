"""Identity and permissions of viewers: TokenReviews and SubjectAccessReviews, with bounded caches.

The API server decides both, so the console shows a user no more than `kubectl get` does. Reviews of tokens are cached
for TOKEN_SECONDS, reviews of permissions for ACCESS_SECONDS. So a revoked token or a withdrawn permission works no
longer than that. If the API server does not answer, KubeUnavailableError is raised, and the server shows nothing.
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
"""Maximum length of a token. An identity provider's token with many groups has several kilobytes."""
REVIEWS_AT_ONCE_MAX: Final = 8
"""Maximum number of concurrent TokenReviews. SubjectAccessReviews have a separate limit of the same size, so that
guessed tokens do not delay signed-in viewers."""
KNOWN_SECONDS: Final = 86_400.0
"""Time in seconds after which a token that was once valid counts as unknown again."""
REFUSALS_MAX: Final = 30
"""Maximum number of refused tokens within REFUSAL_SECONDS. Above this limit, unknown tokens are not reviewed, so that
guesses do not flood the API server."""
REFUSAL_SECONDS: Final = 10.0
NAMESPACES_MAX: Final = 100
"""Maximum number of namespaces that are checked one by one for a viewer without permission to list all namespaces."""
QUESTIONS_MAX: Final = 300
"""Maximum number of SubjectAccessReviews for one viewer in ACCESS_SECONDS: enough for three views of the list of
fleets."""
LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""The syntax of a namespace's name (an RFC 1123 label)."""

Value = TypeVar("Value")
Review = Callable[[Kind, JsonObject], Awaitable[JsonObject]]


class TooManyAttemptsError(Exception):
    """Too many tokens were refused recently, or one viewer caused too many permission checks. The viewer must repeat
    the request later."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """The user of a token, as a TokenReview returned it. `extra` has further attributes, which authorizers may use."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Expiring(Generic[Value]):
    """A cache of at most `most` values, each kept for `seconds`. A full cache drops its oldest value. Expired values
    are removed when another value is stored."""

    def __init__(self, clock: Clock, seconds: float, most: int) -> None:
        self._clock, self._seconds, self._most = clock, seconds, most
        self._values: OrderedDict[Hashable, tuple[float, Value]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def find(self, key: Hashable) -> tuple[Value] | None:
        """The value of a key, in a tuple with one element, because a value may be None. Returns None if there is no
        value, or if it has expired."""
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
    """Reviews tokens and permissions, and caches the API server's answers. Used on one event loop."""

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
        """The user of a token; None if the API server refuses the token. Raises KubeError and TooManyAttemptsError."""
        if not token or len(token) > TOKEN_CHARACTERS_MAX or not token.isascii() or not token.isprintable():
            return None
        digest = hashlib.sha256(token.encode()).digest()  # the cache holds only digests, not tokens
        found = self._viewers.find(digest)
        if found is not None:
            return found[0]
        if self._known.find(digest) is None:
            self._require_few_refusals()
        return await self._once(digest, self._token_slots, lambda: self._try(digest, token))

    def _require_few_refusals(self) -> None:
        """Raise TooManyAttemptsError if there are REFUSALS_MAX or more unknown tokens that are being reviewed now, or
        were refused within the last REFUSAL_SECONDS."""
        now = self._clock.monotonic()
        self._refusals = [at for at in self._refusals if at > now - REFUSAL_SECONDS]
        if len(self._refusals) + self._trying >= REFUSALS_MAX:
            raise TooManyAttemptsError(
                f"{REFUSALS_MAX} tokens were refused within {REFUSAL_SECONDS:.0f} s: try again later"
            )

    async def _try(self, digest: bytes, token: str) -> Viewer | None:
        """Review a token. Tokens that were valid before are exempt from the limit on refusals, because otherwise
        guessed tokens would sign everybody out."""
        if self._known.find(digest) is not None:
            return await self._authenticate(digest, token)
        self._require_few_refusals()  # again, because other tokens may have been refused while this token waited
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
        """True if the viewer has permission for this verb on a kind in a namespace (empty: in all namespaces). False
        for an invalid namespace name. Raises KubeError and TooManyAttemptsError."""
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
        """Count a permission check of a viewer. Raises TooManyAttemptsError above QUESTIONS_MAX."""
        found = self._questions.find(viewer)
        counter = found[0] if found is not None else count()
        if found is None:
            self._questions.keep(viewer, counter)
        if next(counter) >= QUESTIONS_MAX:
            raise TooManyAttemptsError(f"more than {QUESTIONS_MAX} permission checks for you: try again in ten seconds")

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
        """The namespaces in which the viewer may list objects of a kind; None for all namespaces. Only the first
        NAMESPACES_MAX of the given namespaces are checked. Raises KubeError and TooManyAttemptsError."""
        if await self.may(viewer, "list", kind, ""):
            return None
        asked = sorted(set(namespaces))[:NAMESPACES_MAX]
        answers = await asyncio.gather(*(self.may(viewer, "list", kind, name) for name in asked))
        return frozenset(name for name, allowed in zip(asked, answers, strict=True) if allowed)

    async def _once(self, key: Hashable, slots: asyncio.Semaphore, ask: Callable[[], Awaitable[Value]]) -> Value:
        """Share one call among all concurrent callers with the same key. The call continues if a caller is
        cancelled."""
        asking: asyncio.Future[Value] | None = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.ensure_future(_bounded(slots, ask))
            asking.add_done_callback(lambda done: (self._asking.pop(key, None), done.cancelled() or done.exception()))
        return await asyncio.shield(asking)


async def _bounded(slots: asyncio.Semaphore, ask: Callable[[], Awaitable[Value]]) -> Value:
    async with slots:
        return await ask()
