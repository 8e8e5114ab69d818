"""The process in a worker pod: settings, consume loop, draining, health, metrics and the pre-flight check."""
