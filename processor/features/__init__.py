"""The sparse graph: turn a request's named inputs into the dense graph's input.

limits          limits of a request, checked before its values are read
message_tree    counts the values of a protobuf message before it is parsed
plan            the sparse graph of one model: binds requests, fills rows of batches, and what all rows share in steps
sources         numbers the sources of a manifest and writes its features for kernels
binding         checks a request's names, types and rows once, and turns it into addresses
bound_request   a request as the kernel reads it, and a batch's view of several
input_lookup    what looks up, before a request is bound, the inputs that it leaves out
input_writer    what writes such inputs, as lookups read them
user_bounds     bounds of how old the user's part of a reply may be
user_calls      requests about a user whose inputs are kept
input_reader    checks one input and makes the arrays that the kernel reads
sequences       aligns a request's lists of events and cuts them
late_values     fills in, with each batch, what a bound request leaves out
entity_records  fills what a request leaves out from the records of entities
evaluation      hash buckets, joins and crosses of a request's inputs
flat_columns    columns as transforms read them
crosses         ids of combinations of a row's values; crosses over one history by one call
key_codes       the keys of hashed tables
stage           the interface to the runtime of an imported model's own preprocessing
stage_runs      runs a stage in pieces, within what one request may cost
growth_meter    measures how much a stage computes, by rows and by the longest list
stage_rows      runs a stage that reads rows of tables, with each batch
"""

__all__ = [
    "binding",
    "bound_request",
    "entity_records",
    "evaluation",
    "growth_meter",
    "input_lookup",
    "input_reader",
    "input_writer",
    "key_codes",
    "late_values",
    "limits",
    "message_tree",
    "plan",
    "sequences",
    "sources",
    "stage",
    "stage_runs",
    "user_bounds",
    "user_calls",
]
