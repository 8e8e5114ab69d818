"""Changes of a reset that the API server lets pass."""

from __future__ import annotations

from collections.abc import Callable

from tests.apiserver.conftest import Site
from tests.unit.api.crd_objects import REMOVED, changed, consumer_group


def test_dry_run_is_done_for_real_under_its_id_and_another_reset_needs_another(quiet_site: Callable[..., Site]) -> None:
    here = quiet_site("crd-offsets")
    dry = {"id": "a", "to": "Earliest", "dryRun": True}
    made = consumer_group({"spec.offsets": {"reset": dry}})
    here.client.create(here.name, made)
    try:
        here.client.would_replace(here.name, changed(made, {"spec.offsets.reset.dryRun": False}))
        here.client.would_replace(here.name, changed(made, {"spec.offsets.reset": {"id": "b", "to": "Latest"}}))
        here.client.would_replace(here.name, changed(made, {"spec.offsets": REMOVED}))
    finally:
        here.client.delete(here.name, made)
