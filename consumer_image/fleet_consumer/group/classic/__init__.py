"""The classic rebalance protocol (KIP-62 and its successors); docs/rebalance.md walks through one rebalance.

`states` has the table of moves, `state` the one state object, `rebalance`, `session` and `subscription` the rules over
it, `machine` the dispatch of events.
"""
