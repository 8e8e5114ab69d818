"""Benchmarks: ours compared with the bare library or a peer, in one run on one broker. `python -m bench` runs them."""
