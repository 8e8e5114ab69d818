"""Fate of a record whose handler failed: classification, attempts, delays, and the headers.

Pure: no I/O, no clock. The worker writes and waits as decided here.
"""
