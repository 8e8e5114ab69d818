"""The end of a worker process: signals, watchdog, setup limit and termination message."""
