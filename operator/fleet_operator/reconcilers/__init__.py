"""One reconciler per kind. A reconcile gathers facts, lets `planning` decide, acts, and writes the status.

Each reconciler is level-based: it reads the present state and needs no event, so the operator may be killed between any
two calls.
"""
