"""Fetching: a thread that reads assigned partitions with librdkafka, and the read-ahead. Knows nothing of the group."""
