"""Backfills: the driver and the tasks that run a group's handler over a bounded part of a topic, on Spark.

The driver runs one slice after another, and records each finished slice in the ledger (`contract/backfill_ledger`). A
later attempt continues from the ledger. Only the driver's session and the tasks import Spark.
"""
