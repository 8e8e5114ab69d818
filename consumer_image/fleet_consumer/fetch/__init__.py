"""Fetching: a thread that reads assigned partitions with librdkafka, and the read-ahead queue. Independent of group
membership."""
