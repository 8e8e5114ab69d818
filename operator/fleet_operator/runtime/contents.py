"""Contents of objects whose cached copies lack them: the latest that were read, up to a number of bytes.

A content holds for the very version of the object that it was read at. It is kept compressed: what the operator reads
is JSON and source text, which shrinks to a fifth and less. What does not fit is read again when it is needed.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fleet_operator.clients.kinds import JsonObject, Kind, kind_of
from fleet_operator.runtime.cache import Key, key_of, version_of

BYTES_MAX: Final = 48 * 1024 * 1024
OBJECT_CHARACTERS_MAX: Final = 256 * 1024
"""Of larger objects nothing is kept: to pack one takes longer than to read it."""
FAST: Final = 1

Address = tuple[Kind, Key]


class _Packed(NamedTuple):
    uid: str
    version: int
    packed: bytes


@dataclass(slots=True)
class Contents:
    """The objects read last, whole. Used on the event loop only."""

    bytes_max: int = BYTES_MAX
    size: int = 0
    _packed: dict[Address, _Packed] = field(default_factory=dict)  # the one used last is last

    def get(self, seen: JsonObject) -> JsonObject | None:
        """The object whole, if it was kept at this version or a newer one."""
        address = (kind_of(seen), key_of(seen))
        kept = self._packed.get(address)
        if kept is None or kept.uid != seen["metadata"]["uid"] or kept.version < version_of(seen):
            return None
        self._packed[address] = self._packed.pop(address)
        body: JsonObject = json.loads(zlib.decompress(kept.packed))
        return body

    def put(self, body: JsonObject) -> None:
        """Keep an object as it was just read."""
        address = (kind_of(body), key_of(body))
        self._drop(address)
        metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
        text = json.dumps({**body, "metadata": metadata})
        if len(text) > OBJECT_CHARACTERS_MAX:
            return
        packed = zlib.compress(text.encode(), FAST)
        self._packed[address] = _Packed(metadata["uid"], version_of(body), packed)
        self.size += len(packed)
        while self.size > self.bytes_max:
            self._drop(next(iter(self._packed)))

    def drop(self, body: JsonObject) -> None:
        """Forget an object that is gone."""
        self._drop((kind_of(body), key_of(body)))

    def _drop(self, address: Address) -> None:
        kept = self._packed.pop(address, None)
        if kept is not None:
            self.size -= len(kept.packed)
