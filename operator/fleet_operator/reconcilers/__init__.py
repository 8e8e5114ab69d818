"""One reconciler per kind. A reconcile gathers facts, decides with the functions in `planning`, carries out the
decision, and writes the status.

Each reconciler is level-triggered: it decides from the present state, not from events, so the operator may be killed
between any two calls.
"""
