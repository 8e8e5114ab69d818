"""Sessions of people who have signed in with a token: a random cookie stands for the token, which stays in memory."""

import hashlib
import secrets
from collections import OrderedDict
from typing import Final

from fleet_consumer.clock import Clock

SESSION_SECONDS: Final = 8 * 3600.0
"""Time after which a person signs in again, whatever the token's own end."""
SESSIONS_MAX: Final = 10_000
USER_SESSIONS_MAX: Final = 20
"""Sessions of one user, which can be the service account of a team. Beyond them, the user's oldest session ends."""
ID_BYTES: Final = 32


class Sessions:
    """Tokens and users by session id. Ids are kept as digests, so that a dump of the memory opens no session. Beyond
    SESSIONS_MAX, the oldest session ends. Sessions end with the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tokens: OrderedDict[bytes, tuple[float, str, str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tokens)

    def begin(self, token: str, user: str) -> str:
        """Begin a session; returns the value of its cookie."""
        now = self._clock.monotonic()
        own = [key for key, (_, _, other) in self._tokens.items() if other == user]
        for key in own[: max(0, len(own) - USER_SESSIONS_MAX + 1)]:
            del self._tokens[key]
        while self._tokens and (len(self._tokens) >= SESSIONS_MAX or next(iter(self._tokens.values()))[0] <= now):
            self._tokens.popitem(last=False)
        value = secrets.token_urlsafe(ID_BYTES)
        self._tokens[_digest(value)] = (now + SESSION_SECONDS, token, user)
        return value

    def token_of(self, value: str) -> str | None:
        found = self._tokens.get(_digest(value))
        return found[1] if found is not None and found[0] > self._clock.monotonic() else None

    def revoke(self, value: str) -> None:
        self._tokens.pop(_digest(value), None)


def _digest(value: str) -> bytes:
    """The digest of a cookie, which can have any bytes."""
    return hashlib.sha256(value.encode(errors="surrogateescape")).digest()
