"""The hold of a new worker's first join, from the file that the operator writes before a step."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from fleet_consumer.contract.joins import parse_join
from fleet_consumer.contract.pod import JOIN_FILE
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.worker.config.mounted_file import FileUnreadable, MountedFile
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")


def join_hold_s(skip_file: str | None, uid: str, pod: str, now: float) -> float:
    """Seconds for which this pod's worker holds its first join; `now` in epoch seconds.

    `skip_file` is the path beside which the file is mounted, None outside of a pod. Without a file, or with one that
    cannot be read, nothing is held: the group then has one rebalance more.
    """
    ordinal = re.fullmatch(r".+-([0-9]+)", pod)
    if skip_file is None or ordinal is None:
        return 0.0
    try:
        step = parse_join(MountedFile(str(Path(skip_file).with_name(JOIN_FILE))).read(), uid)
    except (FileUnreadable, SettingsInvalid) as error:
        if not getattr(error, "missing", False):
            LOG.warning("the file of the fleet's last step cannot be used", extra=fields(error=str(error)))
        return 0.0
    return 0.0 if step is None else step.hold_s(int(ordinal[1]), now)
