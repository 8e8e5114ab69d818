"""Application code at its border: finding it, decoding what it reads, judging what it answers, noticing when it hangs.

What an application does wrong must end with its record or with a refused revision, never with the worker.
"""

from __future__ import annotations

from fleet_consumer.handlers.answers import Outputs
from fleet_consumer.handlers.decoding import decoder
from fleet_consumer.handlers.loading import (
    HandlerContext,
    HandlerImportFailed,
    HandlerKindUnsupported,
    HandlerNotCallable,
    PythonHandler,
    load_handler,
)

__all__ = [
    "HandlerContext",
    "HandlerImportFailed",
    "HandlerKindUnsupported",
    "HandlerNotCallable",
    "Outputs",
    "PythonHandler",
    "decoder",
    "load_handler",
]
