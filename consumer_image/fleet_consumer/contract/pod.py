"""A worker's pod as operator and worker agree on it: mounted files, exit codes, HTTP pages. Pure."""

from __future__ import annotations

from typing import Final

WORKER_FILE: Final = "worker.json"
REDRIVE_FILE: Final = "redrive.json"
BACKFILL_FILE: Final = "backfill.json"
POLICIES_FILE: Final = "policies.json"
SKIP_FILE: Final = "skip.json"
JOIN_FILE: Final = "join.json"
"""Beside the skip file, in the same ConfigMap."""

CONFIG_DIRECTORY: Final = "/etc/consumer-fleet"
WORKER_CONFIG: Final = f"{CONFIG_DIRECTORY}/{WORKER_FILE}"
REDRIVE_CONFIG: Final = f"{CONFIG_DIRECTORY}/{REDRIVE_FILE}"
BACKFILL_CONFIG: Final = f"{CONFIG_DIRECTORY}/{BACKFILL_FILE}"
CANDIDATE_DIRECTORY: Final = f"{CONFIG_DIRECTORY}/candidate"
"""Source of the second handler of a comparison."""
SINK_DIRECTORY: Final = "/var/lib/consumer-fleet/sink"
"""Mount of the volume that a Backfill writes Parquet to."""

EXIT_OK: Final = 0
EXIT_SETTINGS: Final = 20
"""Settings or handler must be changed: the same revision or run fails every time."""
EXIT_SURROUNDINGS: Final = 21
"""Brokers, credentials, topics or rights, or a stop: the same revision or run may succeed later."""
EXIT_SUPERSEDED: Final = 22
"""A newer attempt of the same Backfill owns its ledger; this one has written nothing more."""
EXIT_INTERRUPTED: Final = 130
"""Ctrl-C, in a shell's convention for SIGINT."""

POD_NAME: Final = "POD_NAME"
"""Environment variable of the pod's name."""

POD_UID: Final = "FLEET_POD_UID"
"""Environment variable of the pod's uid. `/member` asks for it as a bearer token, which whoever may read pods of the
namespace knows. Without the variable the page is open, as in local runs."""

HEALTH_PAGE: Final = "/healthz"
READY_PAGE: Final = "/readyz"
MEMBER_PAGE: Final = "/member"
