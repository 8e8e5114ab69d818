"""The worker process of a fleet's pod: settings, consume loop, draining, health, metrics, pre-flight check."""
