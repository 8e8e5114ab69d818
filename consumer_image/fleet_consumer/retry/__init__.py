"""Decisions about a record whose handler call failed: classification, attempts, delays and headers.

No I/O, no clock: the worker writes the records and waits for delays.
"""
