"""Plans for Backfills: range, obstacles, attempts, the Spark application, phase and status."""
