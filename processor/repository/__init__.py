"""Model repositories: versions, their change logs and signatures, in folders and in object stores.

log               what a version serves, as numbered records in its folder: followed, written
mirror            repositories in object stores, and the local folders that stand for them
version           a version's folder, written aside and committed by one rename
storage           where a version's files live, if not where they are read
version_folders   which folder holds which version
model_repository  which models, versions and deltas there are
mapped_file       a file that is served from where it lies, and whether it still is what was verified
warmup            recorded requests that a version is warmed with
envelope          what is replaced as it changes, signed
keyring           the key that a process signs with, and those that it trusts
trust_memory      what a process has trusted, remembered
"""

__all__ = [
    "keyring",
    "log",
    "mapped_file",
    "mirror",
    "model_repository",
    "storage",
    "trust_memory",
    "version",
    "version_folders",
    "warmup",
]
