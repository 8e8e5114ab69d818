"""Use of librdkafka outside of the fetch thread: configuration, producer, bounded reading, and conversion of messages
to records."""
