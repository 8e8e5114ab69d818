"""Infrastructure of all controllers: queue, caches, Lease, Events, metrics, health. It knows neither Kafka nor
reconcilers.

Pure classes, which get the time as the argument `now`, make the decisions. Coroutines only wait and make calls.
"""
