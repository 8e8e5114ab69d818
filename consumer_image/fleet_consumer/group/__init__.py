"""Group membership as state machines: events with their time go in, actions come out.

Nothing here may own a thread, a socket, a lock, a clock or a source of chance.
"""
