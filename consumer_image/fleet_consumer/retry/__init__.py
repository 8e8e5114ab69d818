"""What becomes of a record that its handler did not finish: classification, attempts, delays, and the headers.

Pure: no I/O, no clock. The worker writes what is decided here, and waits as long as it is told.
"""

from __future__ import annotations

from fleet_consumer.retry.failure import Drop, Failure, FailureReason, Retry, Undecodable, classify
from fleet_consumer.retry.headers import HEADER_PREFIX, failed_headers

__all__ = ["HEADER_PREFIX", "Drop", "Failure", "FailureReason", "Retry", "Undecodable", "classify", "failed_headers"]
