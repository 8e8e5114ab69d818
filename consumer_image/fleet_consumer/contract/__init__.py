"""The contract between operator and workers: names, settings files, marks, shapes of managed topics. Pure.

Both sides import this package, so neither can drift from the other. It opens no file and no connection.
"""
