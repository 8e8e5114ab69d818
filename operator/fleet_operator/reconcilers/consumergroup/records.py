"""Reader of the records of a group's revisions, whose content the caches leave out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fleet_consumer.contract import naming
from fleet_operator.clients.kinds import CONFIG_MAP, JsonObject
from fleet_operator.planning.fleet.known_revisions import known_to
from fleet_operator.planning.labels import REVISION_ANNOTATION
from fleet_operator.reconcilers.context import is_owned_by
from fleet_operator.runtime.cache import key_of
from fleet_operator.runtime.store import Store

CHARACTERS_MAX: Final = 4 * 1024 * 1024
"""Limit of the content read from records that the fleet's StatefulSet does not name. Own records have a few thousand
characters; others can create any number of ConfigMaps with a group's labels, up to 1 MiB each."""


async def read_records(
    store: Store, owner: JsonObject, config_maps: Sequence[JsonObject], stateful_set: JsonObject | None
) -> tuple[JsonObject, ...]:
    """A group's ConfigMaps, possible records with their content. Raises KubeError.

    Records that the StatefulSet names come first and are always read. Others beyond the limit are left unread until
    those before them have been removed.
    """
    known, read, found = known_to(stateful_set), 0, list[JsonObject]()
    for seen in sorted(config_maps, key=lambda body: (_revision_of(body) not in known, body["metadata"]["name"])):
        revision = _revision_of(seen)
        is_record = revision and seen["metadata"]["name"] == naming.revision_config(owner["metadata"]["name"], revision)
        if not is_record or (revision not in known and read > CHARACTERS_MAX):
            found.append(seen)
            continue
        whole = await store.content(CONFIG_MAP, key_of(seen))
        if whole is not None and is_owned_by(whole, owner):
            read += sum(map(len, (whole.get("data") or {}).values())) if revision not in known else 0
            found.append(whole)
    return tuple(sorted(found, key=lambda body: str(body["metadata"]["name"])))


def _revision_of(body: JsonObject) -> str:
    """The revision in a ConfigMap's annotation."""
    return str((body["metadata"].get("annotations") or {}).get(REVISION_ANNOTATION, ""))
