"""The retry budget's breaker: its decisions, and the watch that lets retry workers follow it."""
