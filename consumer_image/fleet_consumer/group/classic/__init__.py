"""The classic rebalance protocol (KIP-62 and its successors); docs/rebalance.md walks through one rebalance.

`states` has the table of states and moves, `state` has the member's state, and `rebalance` and `session` have the rules
that change that state. `machine` dispatches events to these rules, and has the rules for subscriptions.
"""
