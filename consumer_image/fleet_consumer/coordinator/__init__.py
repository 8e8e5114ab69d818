"""I/O for the group machine: thread, connections, clock. The machine itself makes all protocol decisions."""
