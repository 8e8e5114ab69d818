"""Redrive: failed records put back for their own group, once each.

One process reads the failed topic (dead letter queue) from its start to its initial end, and writes the selected
records to the group's redrive topic, which the retry workers consume at once. The redrive topic is the ledger of moved
records; the progress is stored in a Kafka group of its own. So a run that is killed resumes, and no other run moves the
same record again.
"""
