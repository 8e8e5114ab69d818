"""The shell around the group machine: a thread, sockets, a clock.

The coordinator thread owns the network client and the machine; the user's thread reaches it through queues. Decisions
of the protocol belong to the machine.
"""
