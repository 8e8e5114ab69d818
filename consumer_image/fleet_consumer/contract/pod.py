"""Constants of a worker's pod that operator and worker share: mounted files, exit codes, HTTP pages."""

from typing import Final

WORKER_FILE: Final = "worker.json"
REDRIVE_FILE: Final = "redrive.json"
BACKFILL_FILE: Final = "backfill.json"
POLICIES_FILE: Final = "policies.json"
SKIP_FILE: Final = "skip.json"
JOIN_FILE: Final = "join.json"
"""Name of the file that announces a scaling step (see `joins.py`), in the same ConfigMap as the skip file."""

CONFIG_DIRECTORY: Final = "/etc/consumer-fleet"
WORKER_CONFIG: Final = f"{CONFIG_DIRECTORY}/{WORKER_FILE}"
REDRIVE_CONFIG: Final = f"{CONFIG_DIRECTORY}/{REDRIVE_FILE}"
BACKFILL_CONFIG: Final = f"{CONFIG_DIRECTORY}/{BACKFILL_FILE}"
CANDIDATE_DIRECTORY: Final = f"{CONFIG_DIRECTORY}/candidate"
"""Mounted folder with the source of a comparison's second handler."""
SINK_DIRECTORY: Final = "/var/lib/consumer-fleet/sink"
"""Mount of the volume to which a Backfill writes Parquet."""

EXIT_OK: Final = 0
EXIT_SETTINGS: Final = 20
"""Exit code if the settings or the handler must be changed, because a retry of this revision or run would always
fail."""
EXIT_SURROUNDINGS: Final = 21
"""Exit code after errors of brokers, credentials, topics or permissions, or after a stop: a later try may succeed."""
EXIT_SUPERSEDED: Final = 22
"""Exit code if a newer attempt of the same Backfill owns the ledger, so that this attempt can no longer write."""
EXIT_INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, by the shell's convention for SIGINT."""

POD_NAME: Final = "POD_NAME"

POD_UID: Final = "FLEET_POD_UID"
"""Environment variable with the pod's uid, which the page `/member` requires as a bearer token. Everybody who may read
the namespace's pods can read the uid. If the variable is not set, as in local runs, the page requires no token."""

HEALTH_PAGE: Final = "/healthz"
READY_PAGE: Final = "/readyz"
MEMBER_PAGE: Final = "/member"
