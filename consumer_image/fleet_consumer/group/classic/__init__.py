"""The classic rebalance protocol (KIP-62 and its successors); docs/rebalance.md walks through one rebalance.

`states` has the table of states and moves, `state` the member's state, `rebalance` and `session` the rules that change
it. `machine` dispatches events to these rules, and has the rules for subscriptions.
"""
