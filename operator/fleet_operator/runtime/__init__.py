"""What every controller needs and no reconciler should see: queue, caches, lease, events, metrics, health.

Decisions stand in pure classes that are given `now`; the coroutines around them only wait and call.
Nothing here may know Kafka, or what a reconciler does.
"""
