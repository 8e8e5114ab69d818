"""Records that a running worker passes by, read from a mounted file and again when it changes.

So a change helps without a rollout, also where every worker dies at the record and is started again.
"""

from __future__ import annotations

import logging

from fleet_consumer.clock import Clock
from fleet_consumer.contract.skips import Place, SkipsInvalid, parse_skips
from fleet_consumer.worker.config.mounted_file import LOOK_INTERVAL_S, FileUnreadable, MountedFile
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")


class SkipFile:
    """The places of one file, for one thread; `uid` is that of the ConsumerGroup. The constructor reads nothing.

    `places` are those of the last valid file, none before the first and while there is no file: the operator's
    ConfigMap exists only where the spec names records.
    """

    def __init__(self, path: str, uid: str, clock: Clock) -> None:
        self._file = MountedFile(path)
        self._uid = uid
        self._clock = clock
        self._look_at = float("-inf")
        self._last_error = ""
        self.places: frozenset[Place] = frozenset()

    def look(self) -> None:
        """Read the file if it has changed, at most once a second. `places` is replaced only by others."""
        now = self._clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_INTERVAL_S
        try:
            places = self._read()
        except (FileUnreadable, SkipsInvalid) as error:
            if str(error) != self._last_error:
                LOG.warning("the list of records to skip cannot be used", extra=fields(error=str(error)))
            self._last_error = str(error)
            self._file.reject()
            return
        self._last_error = ""
        if places is not None and places != self.places:
            self.places = places
            LOG.info("records to skip read", extra=fields(count=len(places)))

    def _read(self) -> frozenset[Place] | None:
        try:
            document = self._file.read()
        except FileUnreadable as error:
            if not error.missing:
                raise
            self._file.reject()
            return frozenset()
        if document is None:
            return None
        places = parse_skips(document, self._uid)
        self._file.accept()
        return places
