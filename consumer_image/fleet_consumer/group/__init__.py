"""Group membership as state machines: the input is timed events, the output is actions.

This package has the code common to all rebalance protocols, and one subpackage per protocol. The machine of each
protocol implements `coordinator.thread.GroupMachine`. Nothing here may own a thread, a socket, a lock, a clock or a
source of randomness.
"""
