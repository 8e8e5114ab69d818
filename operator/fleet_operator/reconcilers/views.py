"""The kinds of which the caches keep less than the whole: their objects may be anybody's."""

from __future__ import annotations

from typing import Final

from fleet_operator.clients.kinds import CONFIG_MAP, JOB, POD, STATEFUL_SET, Kind
from fleet_operator.clients.view import View
from fleet_operator.planning.trimming import trim_config_map, trim_job, trim_pod, trim_stateful_set

VIEWS: Final[dict[Kind, View]] = {
    CONFIG_MAP: View(trim_config_map, metadata_only=True, page=50),
    POD: View(trim_pod, page=25),
    STATEFUL_SET: View(trim_stateful_set, page=25),
    JOB: View(trim_job, page=25),
}
"""A page is what is in memory at once: metadata can be half a MiB an object, any of the others a little over one."""
