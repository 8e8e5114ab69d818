"""Kafka's wire protocol: one module for the requests of each subject.

Messages are frozen dataclasses; field names are those of Kafka's schemas in snake case. Error codes stay plain
numbers (see `errors`). No I/O. Bytes from a peer never raise anything but MalformedMessage.
"""
