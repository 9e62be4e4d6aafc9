"""The core without extensions: `make core-alone`.

story  a server of the copy serves a plain package over both ports, with deltas and a rollback
"""
