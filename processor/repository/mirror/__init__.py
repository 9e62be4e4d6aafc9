"""Repositories in object stores, and the local folders that mirror them.

object_store         one prefix of one bucket: read, create exclusively, list by folder
counted_store        an object store with counted requests and known reachability
version_copy         copies of one version's files in the mirror folder
version_claim        exclusive claim of one writer to a version in the store
mirrored_storage     storage of one version: download and upload
mirror               keep the mirror folder in sync by polling threads
listing              list models, versions and labels of the store
store_errors         log errors of single objects once, and go on with the others
eviction             remove files when the mirror is too large
mirrored_repository  the mirrored repository as the engine sees it
repositories         open a repository by its address
"""

__all__ = ["mirror", "mirrored_repository", "object_store", "repositories"]
