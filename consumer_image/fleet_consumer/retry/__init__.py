"""Fate of a record whose handler failed: classification, attempts, delays, and the headers.

Pure: no I/O, no clock. The worker writes and waits as decided here.
"""

from __future__ import annotations

from fleet_consumer.retry.failure import Drop, Failure, FailureReason, Retry, Undecodable, classify
from fleet_consumer.retry.headers import HEADER_PREFIX

__all__ = ["HEADER_PREFIX", "Drop", "Failure", "FailureReason", "Retry", "Undecodable", "classify"]
