"""JSON documents of mounted files, read again when they change.

The kubelet updates a mounted ConfigMap by replacing a symbolic link, so a change is never seen half written. A file
written in place can be; it is then no JSON, and read again until it is.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

LOOK_INTERVAL_S: Final = 1.0
"""Interval of checks for a change; a check without a change costs one system call."""

BYTES_MAX: Final = 4_000_000
"""A ConfigMap holds one million bytes; a larger file is not from one."""


class FileUnreadable(Exception):
    """The file is missing, not readable, too large, or not JSON. `missing`: there is no such file."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


class MountedFile:
    """One file of a mounted ConfigMap, for one thread. The constructor reads nothing."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._stamp: tuple[int, ...] | None = None
        self._read: tuple[int, ...] | None = None

    def read(self) -> Any | None:
        """The document; None if the file is still the one that was accepted. Raises FileUnreadable."""
        try:
            if _stamp(os.stat(self.path)) == self._stamp:
                return None
            with open(self.path, "rb") as file:
                # Of the opened file: the path may lead elsewhere by now.
                self._read = _stamp(os.fstat(file.fileno()))
                content = file.read(BYTES_MAX + 1)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            message = f"cannot read {self.path}: {error.strerror}; the operator mounts it from the group's ConfigMap"
            raise FileUnreadable(message, missing=missing) from error
        if len(content) > BYTES_MAX:
            raise FileUnreadable(f"{self.path} has more than {BYTES_MAX} bytes, so it is none of the operator's files")
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise FileUnreadable(f"{self.path} is not JSON: {error}") from error

    def accept(self) -> None:
        """Take the document that was read last as read: it is not returned again."""
        self._stamp = self._read

    def reject(self) -> None:
        """Have the file read again, whether it changes or not."""
        self._stamp = None


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
