"""Formats structured logs: a constant message plus fields, as JSON lines or as text.

Workers have their own formatters with other fields and limits; a shared formatter with options would be longer.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final, Literal

LogFormat = Literal["json", "text"]

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """The fields from `extra`, without those that kopf adds to every log line about an object."""
    return {k: v for k, v in vars(record).items() if k not in _STANDARD and not k.startswith(("k8s_", "settings"))}


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= _fields(record)
        if record.exc_info:
            line["stack"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """One line of text: time, level, logger, message, then the fields as key=value."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={value!r}" for key, value in _fields(record).items())
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        text = f"{at} {record.levelname:<7} {record.name.rsplit('.', 1)[-1]}: {record.getMessage()} {fields}".rstrip()
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _wanted(record: logging.LogRecord) -> bool:
    """False for kopf's messages about forbidden requests, which the sweeper reports, and about ignored signals."""
    text = record.getMessage()
    forbidden = text.startswith("Request attempt ") and "APIForbiddenError" in text
    return not (forbidden or text.startswith("OS signals are ignored"))


def configure(log_format: LogFormat, level: str) -> None:
    """Send all logs of this process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler.addFilter(_wanted)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
