"""What becomes of a record that its handler did not finish: classification, and the headers that tell its story.

Pure: no I/O, no clock. The worker writes what is decided here.
"""

from __future__ import annotations

from fleet_consumer.retry.failure import Drop, Failure, FailureReason, Undecodable, classify
from fleet_consumer.retry.headers import HEADER_PREFIX, failed_headers

__all__ = ["HEADER_PREFIX", "Drop", "Failure", "FailureReason", "Undecodable", "classify", "failed_headers"]
