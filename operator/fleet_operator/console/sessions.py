"""Sessions of users who signed in with a token. The browser gets only a random cookie; the token stays in memory."""

import hashlib
import secrets
from collections import OrderedDict
from typing import Final

from fleet_consumer.clock import Clock

SESSION_SECONDS: Final = 8 * 3600.0
"""Time after which a user must sign in again, even if the token is valid for longer."""
SESSIONS_MAX: Final = 10_000
USER_SESSIONS_MAX: Final = 20
"""Maximum number of sessions of one user; a further sign-in ends the user's oldest session. The user may be a service
account that a team shares."""
ID_BYTES: Final = 32


class Sessions:
    """Tokens and users, keyed by the digest of the session id, so that a memory dump reveals no session cookie. Above
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
    """The digest of a cookie's value, which may contain arbitrary bytes."""
    return hashlib.sha256(value.encode(errors="surrogateescape")).digest()
