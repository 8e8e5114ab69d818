"""Plans for Backfills: range, needs, attempts, the Spark application, phase and status."""
