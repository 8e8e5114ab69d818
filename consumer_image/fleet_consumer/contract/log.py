"""`log` of worker.json and redrive.json: level and format of a worker's log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fleet_consumer.contract.section import Section

LEVELS: Final = ("Debug", "Info", "Warning", "Error")
FORMATS: Final = ("Json", "Text")


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The least level that is logged, and the form of a line."""

    level: str = "Info"
    format: str = "Json"


def parse_log(section: Section) -> LogConfig:
    """The settings of a parsed section. Raises SettingsInvalid."""
    return LogConfig(section.choice("level", *LEVELS), section.choice("format", *FORMATS))
