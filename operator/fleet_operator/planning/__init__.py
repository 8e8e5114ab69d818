"""Pure decisions: revisions, manifests, rollouts, scaling, lag, status.

The package has no I/O, no threads and no clock (`now` is an argument, in epoch seconds). Equal inputs give equal
outputs, so a reconcile without changes writes nothing.
"""
