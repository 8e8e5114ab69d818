"""The ends of a worker process: signals, watchdog, setup limit, termination message."""
