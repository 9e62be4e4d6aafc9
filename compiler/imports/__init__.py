"""The front end: any TensorFlow SavedModel, Keras or ONNX file in, a package out (docs/how-to/import.md).

importer          the whole way, proven against the model itself
retrained_export  tables and weights of a retrained model, for a version that is served already
foreign           opens a SavedModel folder, a Keras or an ONNX file
keras_file        a Keras file, written as a SavedModel
onnx_graph        an ONNX file, written as a SavedModel
foreign_graph     a signature as one flat graph
ops               which operations may be used, and which cannot be dense
inputs            what a signature is fed with, as inputs of a package
feeds             a request's inputs as the tensors that the model's own graph wants
samples           inputs that a model can be tried on
runner            any tensor of the flat graph, fed at any tensor
shapes            what every tensor is shaped like, seen by running it
cut               what the CPU computes and what is dense
unsupported_ops   nodes that the backend has no words for
embedding_lookups  embeddings: tensors that can be rows of a table
pooling           sums and means over the ids of a row
draft             the parts of a package: inputs, features, tables
derived_transforms  columns that the engine's own transforms compute
dense_side        the dense side as a DenseGraph
duplicated_tables     tables whose rows the model reads in a second place, which a delta of the table does not reach
stage_graph       what tables do not take the place of, written as one frozen graph
tensorflow_stage  runs such a graph; the entry point freshet.stages
import_report     what was put where and why, as plain data
boundary          the cut between sparse and dense graph, tensor by tensor
report_text       that report as lines of text
report_svg        that report as a drawing
"""

__all__ = ["importer", "report_svg", "report_text", "retrained_export", "tensorflow_stage"]
