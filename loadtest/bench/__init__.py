"""Benchmarks: kernels in pairs in one process, and servers side by side; every figure a ratio within one run."""
