"""The shell around the group machine: a thread, sockets, a clock. Decisions of the protocol belong to the machine."""
