"""Paired benchmarks of the engine: every figure a ratio of two things run in turn, in one process, many times."""
