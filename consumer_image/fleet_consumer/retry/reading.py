"""The reading of a record: one pass over its partition, ended only by an offset reset.

A worker that takes over a partition repeats its predecessor's work since the last commit, so the hops of both are
duplicates. After an offset reset the same records fail again, and those hops are new: nobody else retries them. The
commit at which the partition is taken over distinguishes the two. Every commit of a worker carries a mark in its
metadata; tools that reset offsets write none, and a group whose offsets were deleted has no commit at all. So a commit
without our mark begins a reading with a new id, and the mark carries the id from owner to owner.

The mark names its offset, in case a tool moves the offset and keeps the metadata. Pure.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from fleet_consumer.group.membership import OffsetAndMetadata

_MARK: Final = re.compile(r"fleet-reading=([0-9]{1,19})(?:;id=([0-9a-f]{16})(?:;until=([0-9]{1,19}))?)?")
READING_ID: Final = re.compile(rb"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a partition; without an id it is the first.

    `until` is the partition's end when the reading began: records from there on are read for the first time, and belong
    to no reading. None: all records belong to it.
    """

    id: str | None = None
    until: int | None = None

    def at(self, offset: int) -> str | None:
        """The reading's id for the record at `offset`."""
        return self.id if self.until is None or offset < self.until else None

    def mark(self, offset: int) -> str:
        """The mark for the metadata of a commit of `offset`."""
        known = self.at(offset)
        if known is None:
            return f"fleet-reading={offset}"
        return f"fleet-reading={offset};id={known}" + ("" if self.until is None else f";until={self.until}")


def continued(committed: OffsetAndMetadata | None) -> Reading | None:
    """The reading that a commit continues; None if a new one begins.

    Metadata may come from other tools: anything but an exact mark for this offset is ignored.
    """
    if committed is None:
        return None
    for field in committed.metadata.split(" "):
        found = _MARK.fullmatch(field)
        if found is not None and int(found[1]) == committed.offset:
            return Reading(found[2], None if found[3] is None else int(found[3]))
    return None


def carried_on(earlier: str | None, now: str | None) -> str | None:
    """The reading of a record's next hop, from that of its headers (`earlier`) and of the partition where it was read
    (`now`). A retry topic that is read again makes new hops, too."""
    if now is None or earlier is None:
        return earlier if now is None else now
    return hashlib.blake2b(f"{earlier} {now}".encode(), digest_size=8).hexdigest()
