"""Boundary to application code: importing handlers, decoding their input, checking their results, detecting hangs.

Errors of an application end with its record or with a refused revision, never with the worker.
"""

from __future__ import annotations

from fleet_consumer.handlers.decoding import checker, decoder
from fleet_consumer.handlers.loading import (
    Handler,
    HandlerContext,
    HandlerImportFailed,
    HandlerNotCallable,
    add_import_folder,
    load_handler,
)
from fleet_consumer.handlers.performing import Outputs, Performer

__all__ = [
    "Handler",
    "HandlerContext",
    "HandlerImportFailed",
    "HandlerNotCallable",
    "Outputs",
    "Performer",
    "add_import_folder",
    "checker",
    "decoder",
    "load_handler",
]
