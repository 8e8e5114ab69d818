"""Detection of authorities that a renewal adds, which librdkafka's clients have to know before a broker needs them.

librdkafka reads certificates once. A producer that refuses a broker's renewed certificate has to be replaced, and only
the old one can find out what became of records whose acknowledgement was lost with the connection. So it is replaced
before that, while nothing is in flight. Added authorities are the one renewal with which that takes no risk: with them
a client connects wherever it did before. Others, such as a new authority in the place of the old, may come before the
brokers accept them, and wait until the old ones are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from fleet_consumer.contract.brokers import certificates
from fleet_consumer.librdkafka.settings import CA_FILE, TLS_FILES, tls_files
from fleet_consumer.net import authorities

LOOK_S: Final = 2.0
"""The time between two looks at the files."""


class _Contents(NamedTuple):
    trusted: frozenset[str]
    client: tuple[bytes, ...]
    """The client's own certificate and key."""


class AddedAuthorities:
    """A watch over the TLS files of a client with this configuration.

    Each change is compared with what the files held before it, not with what the client has read: authorities that
    were removed since then are those that no broker needs any more.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._watch = tls_files(config)
        self._authorities: str | None = config.get(CA_FILE)
        self._client = tuple(config[name] for name in TLS_FILES if name in config and name != CA_FILE)
        self._held = self._read()
        self._look_at = 0.0
        # There are authorities that the client has not read.
        self._waiting = False

    def due(self, now: float) -> bool:
        """True if authorities were added which the client has not read; at most once in `LOOK_S`.

        `now` is a monotonic clock's time in seconds.
        """
        if self._authorities is None or now < self._look_at:
            return False
        self._look_at = now + LOOK_S
        if self._watch.changed():
            self._watch.used()
            self._compare()
        return self._waiting

    def used(self) -> None:
        """Note that the client is about to be made again, and so reads the files as they are now."""
        self._waiting = False

    def _compare(self) -> None:
        present = self._read()
        # Unreadable files are about to be written: they change once more.
        if present is None:
            return
        held, self._held = self._held, present
        if held is None or present.client != held.client or not present.trusted >= held.trusted:
            self._waiting = False
        elif present.trusted > held.trusted:
            self._waiting = True

    def _read(self) -> _Contents | None:
        if self._authorities is None:
            return None
        try:
            trusted = frozenset(certificates([authorities(self._authorities).encode()]))
            return _Contents(trusted, tuple(Path(path).read_bytes() for path in self._client))
        except (OSError, ValueError):
            return None
