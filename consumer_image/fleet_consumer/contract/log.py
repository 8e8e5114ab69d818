"""`log` of worker.json and redrive.json: level and format of a worker's log."""

from __future__ import annotations

from typing import Final

from fleet_consumer.contract import fields

LEVELS: Final = ("Debug", "Info", "Warning", "Error")
FORMATS: Final = ("Json", "Text")


@fields.settings
class LogConfig:
    """The least level that is logged, and the form of a line."""

    level: str = fields.choice(*LEVELS, default="Info")
    format: str = fields.choice(*FORMATS, default="Json")
