"""Protocols as pure functions: bytes and headers in, named columns out, and back. No I/O, no state."""
