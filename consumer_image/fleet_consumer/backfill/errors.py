"""Errors that end an attempt: final ones, which every attempt would meet, and others."""

from __future__ import annotations

import json
import re
from typing import Final

MARK: Final = "fleet-task-failed:"
"""Begins the text of an error that a task raises, so that it is found among Spark's own words."""
_MARKED: Final = re.compile(re.escape(MARK) + r"(\{.*?\});")


class BackfillFailed(Exception):
    """An attempt ended before its work. `final`: another attempt would fail alike."""

    def __init__(self, reason: str, message: str, *, final: bool) -> None:
        super().__init__(message)
        self.reason = reason
        self.final = final


class Superseded(Exception):
    """A newer attempt owns the ledger; this one must not write anything more."""

    reason = "Superseded"


class TaskFailed(Exception):
    """An error that a task raises on purpose; its text can be read back with `marked` from Spark's report."""

    def __init__(self, reason: str, message: str, *, final: bool) -> None:
        document = json.dumps({"reason": reason, "message": message, "final": final})
        # No brace but the last ends the document for the expression that finds it.
        super().__init__(MARK + document.replace("};", "} ;") + ";")


def marked(text: str) -> BackfillFailed | None:
    """The error of a task that Spark reports in this text, if it is one of ours."""
    found = _MARKED.search(text)
    if found is None:
        return None
    try:
        document = json.loads(found[1])
        return BackfillFailed(str(document["reason"]), str(document["message"]), final=document["final"] is True)
    except (ValueError, KeyError, TypeError):
        return None
