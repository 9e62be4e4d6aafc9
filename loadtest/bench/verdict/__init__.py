"""Freshet before judges that others made, each in a process of its own.

lookup_race          lookups beside FBGEMM's, by row type; loadtest/results/verdict-lookup.md
lookup_shape         what both look up
pooling_side         Freshet's kernel
fbgemm_side          FBGEMM's CPU kernel
"""

__all__: list[str] = []
