"""Clients of the Kubernetes API and of the workers' own HTTP. Nothing here plans, caches or retries.

Each third-party client library is imported by exactly one module here; only plain dicts and our own errors leave.
"""
