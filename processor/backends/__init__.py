"""What computes dense graphs: one module a library, behind the seam in base.py."""

from processor.backends.registry import load_backend

__all__ = ["load_backend"]
