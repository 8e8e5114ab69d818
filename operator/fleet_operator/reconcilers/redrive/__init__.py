"""The Redrive reconciler."""
