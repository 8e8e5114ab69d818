"""The consumer library: `Consumer` and `AsyncConsumer`, their settings, positions and offset calls."""
