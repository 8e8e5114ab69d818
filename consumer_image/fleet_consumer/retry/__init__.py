"""Decisions about a record whose handler failed: classification, attempts, delays and headers.

Pure: no I/O, no clock. The worker writes and waits.
"""
