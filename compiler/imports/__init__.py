"""The front end: imports any TensorFlow SavedModel, Keras or ONNX file as a package (docs/how-to/import.md).

importing         imports a model, in one of two ways
importer          the translating way, verified against the model itself
retrained         reads a retrained model for a version that is already served
export_check      compares a retrained model with the served version
retrained_export  exports tables and weights of a retrained model, for a version that is already served
foreign           opens a SavedModel folder, a Keras or an ONNX file
keras_file        converts a Keras file to a SavedModel
onnx_graph        converts an ONNX file to a SavedModel
onnx_native       serves an ONNX file as it is, in ONNX Runtime
foreign_graph     a signature as one flat graph
ops               classifies operations: allowed, and allowed in a dense graph
model_signatures  signatures of a SavedModel that one version serves together
output_labels     outputs of strings that are gathered from constant ones
inputs            converts a signature's inputs to inputs of a package
feeds             converts a request's inputs to the tensors of the model's own graph
samples           generates inputs to try a model on
sample_rows       rows of samples: given ones, some of many, limits of generated ones
runner            evaluates any tensor of the flat graph, fed at any tensor
shapes            shapes of all tensors, observed by running the graph
cut               splits the model into sparse side and dense graph
stage_sizes       refuses translated ONNX graphs whose sizes follow from numbers of a request
precision         how closely two computations of a model must agree
error_reason      says in one line why another library refused something
unsupported_ops   finds operators that the backend does not support
embedding_lookups  finds embeddings: tensors that can be rows of a table
pooling           finds sums and means over the ids of a row
package_draft     the record of a package while it is imported, and its manifest
package_proof     verifies a package against the model's own numbers
draft             the parts of a package of a cut: inputs, features, tables
derived_transforms  derives columns by the engine's own transforms
dense_side        builds the dense side as a DenseGraph
duplicated_tables     finds tables that the model reads a second time, where a delta of the table has no effect
stage_lookups     finds embeddings inside the stage whose rows the engine looks up
stage_graph       writes what tables cannot replace as one frozen graph
fed_stage         the state that loaded stages of every runtime share
tensorflow_stage  runs such a graph; the entry point freshet.stages
import_report     where each part of the model went and why, as plain data
cut_report        that report of a cut
two_vectors       finds which output is the user's vector, and which an item's
boundary          tensors between sparse and dense graph
report_text       that report as lines of text
report_svg        that report as a drawing
"""

__all__ = ["importing", "report_svg", "report_text", "retrained", "tensorflow_stage"]
