"""Detects CAs that were added to the trusted CAs. librdkafka's clients must trust a new CA before a broker presents a
certificate from this CA.

librdkafka reads certificates only once. A producer that refuses a broker's renewed certificate must be replaced. But if
acknowledgements were lost with the connection, only the old producer can find out whether the records were written. So
the producer is replaced earlier, while no record is in flight. This early replacement is safe only if CAs were added:
the new client can then connect to every broker that accepted the old client. Any other change, such as the replacement
of a CA, may come before the brokers accept the new files. Such a change is used only after brokers have refused the old
files.

Decision: docs/decisions/0008-renewed-credentials.md.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from fleet_consumer.contract.brokers import certificates
from fleet_consumer.librdkafka.settings import CA_FILE, TLS_FILES, tls_files
from fleet_consumer.net import authorities

CHECK_INTERVAL_S: Final = 2.0


class _Contents(NamedTuple):
    trusted: frozenset[str]
    client: tuple[bytes, ...]
    """The client's own certificate and key."""


class AddedAuthorities:
    """Watches the TLS files of a client with this configuration for added CAs. Each change is compared with the
    previous content of the files, even if the client has read older content. A CA that an earlier change removed is not
    needed by any broker."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._watch = tls_files(config)
        self._authorities: str | None = config.get(CA_FILE)
        self._client = tuple(config[name] for name in TLS_FILES if name in config and name != CA_FILE)
        self._held = self._read_files()
        self._check_at = 0.0
        # True if CAs were added that the client has not read.
        self._waiting = False

    def were_added(self, now: float) -> bool:
        """Return True if CAs were added that the client has not read. The files are checked at most every
        CHECK_INTERVAL_S (by the monotonic time `now`); calls in between return False."""
        if self._authorities is None or now < self._check_at:
            return False
        self._check_at = now + CHECK_INTERVAL_S
        if self._watch.changed():
            self._watch.used()
            self._compare()
        return self._waiting

    def used(self) -> None:
        """Record that the client is about to be replaced; the new client reads the current files."""
        self._waiting = False

    def _compare(self) -> None:
        present = self._read_files()
        # Unreadable files are probably still being written, so they will change again.
        if present is None:
            return
        held, self._held = self._held, present
        if held is None or present.client != held.client or not present.trusted >= held.trusted:
            self._waiting = False
        elif present.trusted > held.trusted:
            self._waiting = True

    def _read_files(self) -> _Contents | None:
        if self._authorities is None:
            return None
        try:
            trusted = frozenset(certificates([authorities(self._authorities).encode()]))
            return _Contents(trusted, tuple(Path(path).read_bytes() for path in self._client))
        except (OSError, ValueError):
            return None
