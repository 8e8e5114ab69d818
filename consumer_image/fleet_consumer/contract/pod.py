"""A worker's pod as operator and worker agree on it: mounted files, exit codes, HTTP pages. Pure."""

from __future__ import annotations

from typing import Final

WORKER_FILE: Final = "worker.json"
REDRIVE_FILE: Final = "redrive.json"
POLICIES_FILE: Final = "policies.json"
SKIP_FILE: Final = "skip.json"

CONFIG_DIRECTORY: Final = "/etc/consumer-fleet"
WORKER_CONFIG: Final = f"{CONFIG_DIRECTORY}/{WORKER_FILE}"
REDRIVE_CONFIG: Final = f"{CONFIG_DIRECTORY}/{REDRIVE_FILE}"

EXIT_OK: Final = 0
EXIT_SETTINGS: Final = 20
"""Settings or handler must be changed: the same revision or run fails every time."""
EXIT_SURROUNDINGS: Final = 21
"""Brokers, credentials, topics or rights, or a stop: the same revision or run may succeed later."""
EXIT_INTERRUPTED: Final = 130
"""Ctrl-C, in a shell's convention for SIGINT."""

POD_NAME: Final = "POD_NAME"
"""Environment variable of the pod's name."""

HEALTH_PAGE: Final = "/healthz"
READY_PAGE: Final = "/readyz"
MEMBER_PAGE: Final = "/member"
