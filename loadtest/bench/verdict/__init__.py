"""Freshet before judges that others made, each in a process of its own.

verdict_page         what each said last; loadtest/results/verdict.md
loadgen_judge        MLCommons' LoadGen at the server; loadtest/results/verdict-loadgen.md
loadgen_side         LoadGen's process, and the connections that its queries go over
dcnv2_shape          the model and the queries of DLRM-DCNv2's shape
possible_rate        the rate that a server could reach which loses nothing
perf_analyzer_judge  Triton's perf_analyzer at the server; loadtest/results/verdict-perf-analyzer.md
lookup_race          lookups beside FBGEMM's, by row type; loadtest/results/verdict-lookup.md
lookup_shape         what both look up
pooling_side         Freshet's kernel
fbgemm_side          FBGEMM's CPU kernel
"""

__all__: list[str] = []
