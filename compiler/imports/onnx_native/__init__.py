"""Serve an ONNX file that the compiler does not translate: ONNX Runtime computes it as it is, without TensorFlow.

native_import   the whole import, verified against ONNX Runtime
native_draft    drafts the package: a dense graph behind lookups, or a stage
native_feeds    the package's inputs by the file's names
native_reader   reads and checks a file, and opens a session of it
native_bags     writes nn.EmbeddingBag without the loops of exporters
whole_outputs   hands whole numbers over in pieces, so that they stay exact
string_outputs  replaces outputs of strings by positions in lists of labels
loop_growth     refuses loops whose carried tensor doubles
bounded_values  finds numbers of a request that its own size bounds
value_sizes     refuses sizes and trip counts that values of a request decide
served_lookups  finds the embeddings that the engine looks up
served_graph    rewrites the graph: one matrix in, weights by name alone
staged_lookups  finds and cuts the embeddings of a graph that is a stage
staged_weights  makes the weights of a graph that is a stage inputs of it
staged_graph    writes a file as a stage, where no dense graph can take its inputs
single_rows     finds the inputs of a stage that may have one row for all rows of the others
onnx_stage      runs such a stage; the entry point freshet.stages
native_samples  generates inputs to try it on
trial           runs it for the first time
"""

__all__ = ["native_import", "onnx_stage", "single_rows"]
