"""One reconciler for each kind: gather what is, let the planners decide, act, write status.

Each is level-based: it looks at what is and never depends on having seen an event, so that the operator may be killed
between any two calls and go on from there. Nothing here decides by itself what a fleet should look like.
"""
