"""`log` of worker.json and redrive.json: level and format of a worker's log."""

from typing import Final

from fleet_consumer.contract import fields

LEVELS: Final = ("Debug", "Info", "Warning", "Error")
FORMATS: Final = ("Json", "Text")


@fields.settings
class LogConfig:
    level: str = fields.choice(*LEVELS, default="Info")
    format: str = fields.choice(*FORMATS, default="Json")
