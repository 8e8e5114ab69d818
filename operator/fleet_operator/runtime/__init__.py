"""Machinery of every controller: queue, caches, lease, events, metrics, health. It knows neither Kafka nor reconcilers.

Decisions are in pure classes that are given `now`; the coroutines around them only wait and call.
"""
