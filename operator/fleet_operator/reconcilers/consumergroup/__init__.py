"""The reconciler of ConsumerGroups: gathers facts, decides, acts, and publishes the status."""
