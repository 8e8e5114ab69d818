"""Use of librdkafka outside of the fetch thread: configuration, producer, bounded reading, conversion of records."""
