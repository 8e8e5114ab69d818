"""Selection of records by a Backfill's filter. Pure."""

from __future__ import annotations

from fleet_consumer.contract.backfill_config import BackfillFilter
from fleet_consumer.record import Headers


class Selection:
    """The filter, prepared for many records."""

    def __init__(self, chosen: BackfillFilter) -> None:
        self._key = chosen.key
        self._headers = [(name, value.encode()) for name, value in chosen.headers.items()]
        self._from_ms, self._to_ms = chosen.from_ms, chosen.to_ms
        self.takes_all = not (self._key or self._headers) and self._from_ms is None and self._to_ms is None

    def takes(self, timestamp: int, key: bytes | None, headers: Headers) -> bool:
        """True if the record is selected. Bytes of a key that are no UTF-8 match no literal."""
        if self._from_ms is not None and timestamp < self._from_ms:
            return False
        if self._to_ms is not None and timestamp >= self._to_ms:
            return False
        if self._key is not None and (key is None or not self._key.found_in(key.decode("utf-8", "replace"))):
            return False
        return all(header in headers for header in self._headers)
