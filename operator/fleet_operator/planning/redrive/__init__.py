"""Plans for Redrive runs: what is needed, the Job, its phase and status."""
