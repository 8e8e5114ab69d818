"""Fetching: a thread that reads assigned partitions with librdkafka, and the read-ahead. Independent of the group."""
