"""The on-disk format, read and written with numpy alone.

manifest    model.json: what a version is
version     a version's folder, written aside and committed by one rename
delta       one file: what changed since the parent step
repository  which models, versions and deltas there are
tensors     safetensors files without a copy
transforms  columns that are computed of a request's inputs
rowtypes    what rows may be stored as
roles       which features are the user's
warmup      recorded requests that a version is warmed with
atomic      a whole file under its name, or no file
"""

__all__ = [
    "atomic",
    "delta",
    "manifest",
    "repository",
    "roles",
    "rowtypes",
    "tensors",
    "transforms",
    "version",
    "warmup",
]
