"""Certificate and key files that are replaced at run time, as mounted Secrets are."""

from __future__ import annotations

import os
from collections.abc import Iterable

Stamps = tuple[tuple[int, int, int] | None, ...]


def stamps_of(paths: Iterable[str]) -> Stamps:
    """A stamp of each file's content without reading it; None for a file that cannot be read.

    Links are followed: the kubelet renews a mounted Secret by pointing one link to a new folder.
    """
    return tuple(_stamp(path) for path in paths)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class FileWatch:
    """Detection of changed files."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(paths)
        self._used = self._seen = stamps_of(self._paths)

    def changed(self) -> bool:
        """True if the files have changed since they were last used; stays True until `used`."""
        self._seen = stamps_of(self._paths)
        return self._seen != self._used

    def used(self) -> None:
        """Mark the files seen by the last `changed` as used; any later change counts as new."""
        self._used = self._seen
