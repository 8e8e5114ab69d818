"""Clients of what the operator talks to: the Kubernetes API and the workers' own HTTP.

Each third-party client library is imported by exactly one module here; only plain dicts and our own errors leave.
Nothing here plans, caches or retries by itself: the work queue owns retries.
"""
