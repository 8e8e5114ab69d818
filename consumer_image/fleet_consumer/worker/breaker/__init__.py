"""The breaker of a retry budget: the decisions, and a thread that reads the main workers' breaker states."""
