"""View models of the console's pages: pure functions from cached objects and observations to dataclasses."""
