"""Pure decisions: revisions, manifests, rollouts, lag, status.

No I/O, no clock (`now` is an argument, in epoch seconds), no threads; the same input gives the same output, so that a
reconcile that finds nothing new writes nothing.
"""
