"""The Backfill reconciler."""
