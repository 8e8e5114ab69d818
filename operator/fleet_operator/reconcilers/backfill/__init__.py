"""The reconciler of Backfills."""
