"""Clients of the Kubernetes API and of the workers' HTTP endpoints. They do not plan, cache or retry.

Each third-party client library is imported by exactly one module, which returns only plain dicts and raises only the
operator's own errors.
"""
