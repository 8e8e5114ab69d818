"""The ConsumerGroup reconciler: gather, decide, act, publish."""
