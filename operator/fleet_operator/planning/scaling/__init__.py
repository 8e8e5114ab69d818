"""Scaling of a fleet by its load: rates, the capacity of a worker, useful counts, and the decision with its reason."""
