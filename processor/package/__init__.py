"""The on-disk format, read and written with numpy alone.

manifest    model.json: what a version is
version     a version's folder, written aside and committed by one rename
delta       one file: what changed since the parent step
delta_run   several deltas as one
place       where a version's files live, if not where they are read
version_folders  which folder holds which version
repository  which models, versions and deltas there are
tensors     safetensors files without a copy
regular_file  what of a repository may be opened at all, and read
mapped_file   a file that is served from where it lies, and whether it still is what was verified
transforms  columns that are computed of a request's inputs
rowtypes    what rows may be stored as
roles       which features are the user's
warmup      recorded requests that a version is warmed with
recording_columns  what recorded requests have beside their features
atomic      a whole file under its name, or no file
signature   key files, signatures over bytes
envelope    what is replaced as it changes, signed
keyring     the key that a process signs with, and those that it trusts
trust_memory  what a process has trusted, remembered
"""

__all__ = [
    "atomic",
    "delta",
    "delta_run",
    "keyring",
    "manifest",
    "mapped_file",
    "place",
    "recording_columns",
    "regular_file",
    "repository",
    "roles",
    "rowtypes",
    "signature",
    "tensors",
    "transforms",
    "trust_memory",
    "version",
    "version_folders",
    "warmup",
]
