"""Backfills: the driver and the tasks that run a group's handler over a bounded part of a topic, on Spark.

The driver goes through the ranges slice by slice and notes each finished one in the ledger (`contract/backfill_ledger`)
from which the next attempt goes on. Spark is imported only where it runs: in the driver's session and in the tasks.
"""
