"""The contract between operator and workers: names, settings files, policies, breaker states, managed topics.

Both sides import this package, so they cannot drift apart. Pure, except that `load_config` reads its file.

Decision: docs/decisions/0032-shared-contract.md.
"""
