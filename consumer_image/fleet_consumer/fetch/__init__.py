"""The data plane: librdkafka reads and writes records; it knows nothing of the group.

The only package that imports confluent_kafka. It may not know membership: partitions and offsets are told to it.
"""
