"""Benchmarks: ours beside the bare library or a peer, in one run, on one broker. `python -m bench` runs all of them."""
