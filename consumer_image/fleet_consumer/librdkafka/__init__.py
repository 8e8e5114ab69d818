"""Everything done through librdkafka except the fetch thread: configuration, producer, bounded reading, conversion."""
