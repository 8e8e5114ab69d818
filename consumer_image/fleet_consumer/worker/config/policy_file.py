"""The retry policies of a running worker: read from a mounted file, and again when it has changed.

The kubelet renews a mounted ConfigMap by putting a link to other files in place of the old one, so a change shows in
what the path leads to and never in half a file. A file that is written in place can be seen by halves; it is bad then,
and read again until it is good. While it is bad the policies of before go on: records that fail meanwhile follow what
was last known to be meant.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Final, NamedTuple

from fleet_consumer.clock import Clock
from fleet_consumer.contract.policies import Policies, PolicyInvalid, parse_policies
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")

LOOK_INTERVAL_S: Final = 1.0
"""How often the path is looked at; a look that finds nothing new costs one system call."""

BYTES_MAX: Final = 4_000_000
"""A ConfigMap holds one million bytes; what is larger is some other file."""


class PolicyFileUnreadable(Exception):
    """The file cannot be had: not there, not allowed, not text, or not JSON."""

    reason = "PolicyFileUnreadable"


class _Stamp(NamedTuple):
    device: int
    inode: int
    size: int
    changed_ns: int


class PolicyFile:
    """The policies in one file, for one thread. Making one reads nothing.

    `policies` are the last good ones, None before there were any. `last_error` is why the file as it is now cannot be
    used, with a `reason` word; None while it can.
    """

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._look_at = float("-inf")
        self._stamp: _Stamp | None = None
        self.policies: Policies | None = None
        self.last_error: PolicyFileUnreadable | PolicyInvalid | None = None

    def look(self) -> bool:
        """Read the file if it has changed, at most once a second; whether `policies` are others than before."""
        now = self._clock.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_INTERVAL_S
        try:
            policies = self._read()
        except (PolicyFileUnreadable, PolicyInvalid) as error:
            if str(error) != str(self.last_error):
                LOG.warning("the retry policies cannot be used", extra=fields(reason=error.reason, error=str(error)))
            self.last_error, self._stamp = error, None
            return False
        self.last_error = None
        if policies is None or policies == self.policies:
            return False
        self.policies = policies
        LOG.info("retry policies read", extra=fields(policy=policies.name, current=policies.current))
        return True

    def _read(self) -> Policies | None:
        """What the file says, None when it is the one that was read before."""
        try:
            if _stamp(os.stat(self._path)) == self._stamp:
                return None
            with open(self._path, "rb") as file:
                # Of what was opened: the path may lead elsewhere by now.
                stamp = _stamp(os.fstat(file.fileno()))
                content = file.read(BYTES_MAX + 1)
        except OSError as error:
            raise PolicyFileUnreadable(
                f"cannot read {self._path}: {error.strerror}; the operator mounts it from the group's ConfigMap"
            ) from error
        if len(content) > BYTES_MAX:
            raise PolicyFileUnreadable(f"{self._path} has more than {BYTES_MAX} bytes, so it is no policies file")
        try:
            document = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise PolicyFileUnreadable(f"{self._path} is not JSON: {error}") from error
        policies = parse_policies(document)
        self._stamp = stamp
        return policies


def _stamp(found: os.stat_result) -> _Stamp:
    return _Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
