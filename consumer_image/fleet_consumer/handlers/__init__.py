"""Boundary to application code: imports handlers, decodes their input, checks their results, detects hanging calls.

An error of the application fails a record or a revision, never the worker.
"""
