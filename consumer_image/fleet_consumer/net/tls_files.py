"""Certificates and keys in files that are replaced while we run, as mounted Secrets are."""

from __future__ import annotations

import os
from collections.abc import Iterable

Stamps = tuple[tuple[int, int, int] | None, ...]


def stamps_of(paths: Iterable[str]) -> Stamps:
    """What tells one content of each file from the next without reading it; None for a file that cannot be had.

    Links are followed: the kubelet renews a mounted Secret by turning one link to a new folder.
    """
    return tuple(_stamp(path) for path in paths)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class FileWatch:
    """Whether some files are still those that were last taken into use."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(paths)
        self._used = self._seen = stamps_of(self._paths)

    def changed(self) -> bool:
        """Look at the files; True until `used` says that what was found here is in use."""
        self._seen = stamps_of(self._paths)
        return self._seen != self._used

    def used(self) -> None:
        """What the last look found has been taken into use; whatever came after that look counts as new."""
        self._used = self._seen
