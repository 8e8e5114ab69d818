"""States: the operator's memory of one object. They hold past decisions, which cannot be observed.

Decision: docs/decisions/0052-operator-states.md.
"""
