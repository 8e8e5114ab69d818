"""What the suites share: real servers on loopback and ways to wait for them."""
