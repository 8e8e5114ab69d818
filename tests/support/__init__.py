"""Helpers shared by the suites: real servers on loopback and waiting for them."""
