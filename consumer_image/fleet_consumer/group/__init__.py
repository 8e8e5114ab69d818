"""Group membership as state machines: timed events go in, actions come out.

This package has the code common to all rebalance protocols, and one subpackage per protocol, whose machine implements
`coordinator.thread.GroupMachine`. Nothing here may own a thread, a socket, a lock, a clock or a source of randomness.
"""
