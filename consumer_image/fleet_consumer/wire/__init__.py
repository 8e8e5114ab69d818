"""Kafka's wire protocol, with one module per group of related requests.

Messages are frozen dataclasses; field names are those of Kafka's schemas, in snake case. Error codes stay plain numbers
(see `errors`). No I/O. Decoding a peer's bytes raises only MalformedMessage.
"""
