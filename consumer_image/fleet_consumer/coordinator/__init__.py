"""The I/O around the group machine: a thread, connections, a clock. The machine makes all protocol decisions."""
