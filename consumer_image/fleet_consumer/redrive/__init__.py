"""Redrive: puts failed records back for their own group, once each.

One process reads the failed topic (dead letter queue) from its start up to its end when the run began. It writes the
selected records to the group's redrive topic, which the retry workers consume at once. The redrive topic is the ledger
of moved records; the run's progress is stored in a separate Kafka group. So a killed run resumes, and no other run
moves the same record again.

Decision: docs/decisions/0018-redrive.md.
"""
