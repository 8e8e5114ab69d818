"""Scaling of a fleet by its load: rates, capacity of a worker, useful worker counts, decision and reason."""
