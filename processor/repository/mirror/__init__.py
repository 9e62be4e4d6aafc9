"""Repositories in object stores: what is there, and the local folder that stands for it.

object_store         one prefix of one bucket: objects read, created once, listed by folder
counted_store        the same, counted
version_copy         files of one version, copied and known
version_claim        who writes a version into the store
mirrored_storage     one version: brought here, sent there
mirror               what the store has, kept in a folder by threads that look all the time
listing              models, versions and labels, listed
store_errors         what is wrong in the store, told once
eviction             what of it may go where it takes more than it may
mirrored_repository  the repository as the engine sees it
repositories         a repository by its address
"""

__all__ = ["mirror", "mirrored_repository", "object_store", "repositories"]
