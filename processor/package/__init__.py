"""The on-disk format, read and written with numpy alone.

manifest    model.json: what a version is
delta       one file: what changed since the parent step
delta_run   several deltas as one
tensors     safetensors files without a copy
regular_file  what of a repository may be opened at all, and read
transforms  columns that are computed of a request's inputs
rowtypes    what rows may be stored as
roles       which features are the user's
recording_columns  what recorded requests have beside their features
atomic      a whole file under its name, or no file
signature   key files, signatures over bytes
"""

__all__ = [
    "atomic",
    "delta",
    "delta_run",
    "manifest",
    "recording_columns",
    "regular_file",
    "roles",
    "rowtypes",
    "signature",
    "tensors",
    "transforms",
]
