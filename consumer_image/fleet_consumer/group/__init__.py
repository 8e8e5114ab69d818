"""Group membership as state machines: events with their time go in, actions come out.

Parts common to all protocols, and one package for each protocol behind `machine.GroupMachine`. Nothing here may own a
thread, a socket, a lock, a clock or a source of randomness.
"""
