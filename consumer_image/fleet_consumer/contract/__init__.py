"""The contract between operator and workers: names, settings files, policies, marks, managed topics.

Both sides import this package, so neither can drift from the other. Pure, except that `load_config` reads its file.
"""
