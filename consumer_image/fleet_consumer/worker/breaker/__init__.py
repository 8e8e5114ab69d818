"""The retry budget's breaker: its decision, and the watch by which other workers follow it."""
