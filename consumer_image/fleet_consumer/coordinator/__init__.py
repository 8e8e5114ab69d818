"""The shell around the group machine: a thread, sockets, a clock.

The heartbeat thread owns the network client and the machine; the user's thread speaks to it through queues. Nothing
here may decide what the protocol demands, that is the machine's.
"""
