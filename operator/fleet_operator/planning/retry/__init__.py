"""Plans for retries: policy revisions, topics, published policies, and the number of retry workers."""
