"""States: the operator's memory of one object. A state records past decisions, because these cannot be observed.

Decision: docs/decisions/0052-operator-states.md.
"""
