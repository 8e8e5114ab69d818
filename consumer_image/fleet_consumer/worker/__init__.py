"""The process in a worker's pod: settings, the consume loop, draining, health, metrics, and the pre-flight check."""
