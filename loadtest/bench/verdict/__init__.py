"""Freshet's lookups beside FBGEMM's, each in a process of its own.

lookup_race   both in turn, by row type; loadtest/results/verdict-lookup.md
lookup_shape  what both look up
pooling_side  Freshet's kernel
fbgemm_side   FBGEMM's CPU kernel
"""

__all__: list[str] = []
