"""Infrastructure of all controllers: queue, caches, Lease, Events, metrics, health. It knows neither Kafka nor
reconcilers.

Decisions are made by pure classes, which get the time as the argument `now`. The coroutines around them only wait and
make calls.
"""
