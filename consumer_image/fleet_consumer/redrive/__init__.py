"""Redrive: sends failed records to their own group again, each record once.

One process reads the failed topic (dead letter queue) from its start to its end when the run began. The process writes
the selected records to the group's redrive topic, which the retry workers consume without delay. The redrive topic is
the ledger of moved records; the run's progress is stored in a separate Kafka group. So a killed run resumes, and no
other run moves the same record again.

Decision: docs/decisions/0018-redrive.md.
"""
