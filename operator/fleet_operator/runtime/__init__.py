"""Machinery of every controller, unseen by reconcilers: queue, caches, lease, events, metrics, health.

Decisions stand in pure classes that are given `now`; the coroutines around them only wait and call.
Nothing here may know Kafka, or what a reconciler does.
"""
