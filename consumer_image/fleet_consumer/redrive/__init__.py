"""Redrive: failed records put back for their own group, once each.

One process reads the failed topic from its start to the end it had at first, and writes what is selected to the
group's redrive topic, which the retry workers consume at once. The redrive topic is the ledger of what was moved; how
far the run has come stands in a Kafka group of its own. So a run that is killed goes on where it was, and no other
run moves the same record again.
"""
