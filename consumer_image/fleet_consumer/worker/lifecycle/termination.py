"""Forced exit and termination message."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")

EXIT_HUNG: Final = 75
"""A handler hung: past the poll interval, or past the drain time."""

OVER_THE_LIMIT: Final = "the handler did not answer within the poll interval; the membership is given up"
SETUP_OVER_THE_LIMIT: Final = "the handler's setup did not return within the poll interval"
NOT_DRAINED: Final = "the handler did not end within the drain time"

TERMINATION_LOG: Final = Path("/dev/termination-log")


def end_process(why: str, details: Mapping[str, object], reason: str = "HandlerTimeout") -> NoReturn:
    """End the process although a thread of it hangs; its records in hand are not committed, so nothing is lost."""
    LOG.critical(why, extra=fields(**details))
    named = {key: details.get(f"read{key.title()}", details.get(key)) for key in ("topic", "partition", "offset")}
    records = [named] if named["topic"] is not None else []
    write_termination(json.dumps({"ok": False, "reason": reason, "message": f"{why}: {details}", "records": records}))
    sys.stderr.flush()
    os._exit(EXIT_HUNG)


def write_termination(text: str, path: Path = TERMINATION_LOG) -> None:
    """Write the termination message for the kubelet; only a container has that file, so it is never created."""
    if path.exists():
        path.write_text(text, encoding="utf-8")
