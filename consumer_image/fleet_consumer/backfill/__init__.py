"""Backfills: the driver and the tasks that run a group's handler over a bounded part of a topic, on Spark.

The driver runs slice after slice, and records each finished slice in the ledger (`contract/backfill_ledger`). The next
attempt continues from the ledger. Only the driver's session and the tasks import Spark.
"""
