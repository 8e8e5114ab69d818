"""Parts of objects: as much of a kind as the operator needs, so that what others write cannot fill its memory.

Anybody who may write a ConfigMap or a pod may label it so that the operator's watch selects it, and may make it as
large as the API server accepts. So lists are fetched in small pages, and each object is cut to its view before the next
page is asked for. Where only the metadata is needed, the API server is asked for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fleet_operator.clients.kinds import JsonObject

LIST_PAGE_OBJECTS: Final = 500
"""The page of a list of objects that are taken whole."""

_METADATA: Final = "application/json;as=PartialObjectMetadata{suffix};g=meta.k8s.io;v=v1"


def _whole(body: JsonObject) -> JsonObject:
    body["metadata"].pop("managedFields", None)  # half of an object's size, and nobody here reads it
    return body


@dataclass(frozen=True, slots=True)
class View:
    """A part of each object of a kind. `trim` makes it of a whole one, and leaves what is such a part as it is."""

    trim: Callable[[JsonObject], JsonObject] = _whole
    metadata_only: bool = False
    page: int = LIST_PAGE_OBJECTS

    def accepts(self, *, many: bool) -> str:
        """The Accept header of a list (`many`), or of a watch or a read of one object."""
        return _METADATA.format(suffix="List" if many else "") if self.metadata_only else "application/json"


WHOLE: Final = View()
