"""Redrive: sends failed records to their own group again, each record once.

One process reads the failed topic (dead letter queue), from its start to the end that it had when the run began. The
process writes the selected records to the group's redrive topic, which the retry workers consume without delay. The
redrive topic is the ledger: it shows which records were moved, so no other run moves the same record again. The run's
progress is stored in the offsets of a separate Kafka group, so a killed run resumes.

Decision: docs/decisions/0018-redrive.md.
"""
