"""Boundary to application code: importing handlers, decoding their input, checking their results, detecting hangs.

Errors of an application end with its record or with a refused revision, never with the worker.
"""
