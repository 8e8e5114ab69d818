"""Plans for retries: policy, topics, publication, fleet size."""
