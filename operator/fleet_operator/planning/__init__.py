"""Pure decisions: revisions, manifests, rollouts, lag, status.

Everything here takes what was read from the cluster and from Kafka, and returns what should be. No I/O, no clock (`now`
is an argument, in epoch seconds), no threads; the same input gives the same output, so that a reconcile that finds
nothing new writes nothing.
"""
