"""Model repositories: versions, their change logs and signatures, in folders and in object stores.

log               what a version serves, as numbered records in its folder: followed, written
mirror            repositories in object stores, and the local folders that stand for them
version           a version's folder, written aside and committed by one rename
storage           where a version's files live, if not where they are read
model_repository  which models, versions and deltas there are, in which folders
mapped_file       a file that is served from where it lies, and whether it still is what was verified
warmup            recorded requests that a version is warmed with
envelope          what is replaced as it changes, signed
keyring           the key that a process signs with, those that it trusts, and what it has trusted
"""

from freshet_serving.processor.repository.keyring import (Keyring, NO_KEYS, TrustMemory, check_downgrade, default_memory, newest_trusted)
from freshet_serving.processor.repository.log.chain_record import (CHAIN, ChainRecord, DELTA, HOLD, MAX_REASON, RELEASE, REPAIR, ROLLBACK, delta_digest, root_digest, root_hash, sha256)
from freshet_serving.processor.repository.log.change_log import (ChangeLog, DurableDelta)
from freshet_serving.processor.repository.log.contents import (NO_SCALES, TableChanges, VersionContents, narrowed, open_snapshot, stored, widened)
from freshet_serving.processor.repository.log.damage import (find_damage, repair)
from freshet_serving.processor.repository.log.history import (ChainLink, History)
from freshet_serving.processor.repository.log.pruning import (prunable, unfinished)
from freshet_serving.processor.repository.log.re_signing import (check_version, re_sign)
from freshet_serving.processor.repository.log.scrub import (DeltaFolderScanner, Identity, UnrecordedDelta, identity_of, unrecorded_deltas)
from freshet_serving.processor.repository.mapped_file import (BYTES, CHANGES, SIZES, is_written_to)
from freshet_serving.processor.repository.mirror.mirrored_repository import (MirroredRepository)
from freshet_serving.processor.repository.mirror.object_store import (ObjectStore, SCHEMES, address_parts, is_address, open_store)
from freshet_serving.processor.repository.mirror.repositories import (open_repository)
from freshet_serving.processor.repository.model_repository import (FILE_SUFFIXES, FolderWatch, Repository, SAVED_MODEL, check_name, listed, unknown_model)
from freshet_serving.processor.repository.storage import (VersionStorage)
from freshet_serving.processor.repository.version import (DELTAS, DENSE, GRAPH, MANIFEST, SNAPSHOTS, SnapshotManifest, VersionReader, VersionWriter, add_file, sealed, table_file)
from freshet_serving.processor.repository.warmup import (GENERATION, INPUT, MAX_REQUESTS, METADATA, OUTPUT, REQUEST, ROW, TIME, WARMUP, carry_warmup, dump_warmup, parse_warmup)

__all__ = [
    "BYTES",
    "CHAIN",
    "CHANGES",
    "ChainLink",
    "ChainRecord",
    "ChangeLog",
    "DELTA",
    "DELTAS",
    "DENSE",
    "DeltaFolderScanner",
    "DurableDelta",
    "FILE_SUFFIXES",
    "FolderWatch",
    "GENERATION",
    "GRAPH",
    "HOLD",
    "History",
    "INPUT",
    "Identity",
    "Keyring",
    "MANIFEST",
    "MAX_REASON",
    "MAX_REQUESTS",
    "METADATA",
    "MirroredRepository",
    "NO_KEYS",
    "NO_SCALES",
    "OUTPUT",
    "ObjectStore",
    "RELEASE",
    "REPAIR",
    "REQUEST",
    "ROLLBACK",
    "ROW",
    "Repository",
    "SAVED_MODEL",
    "SCHEMES",
    "SIZES",
    "SNAPSHOTS",
    "SnapshotManifest",
    "TIME",
    "TableChanges",
    "TrustMemory",
    "UnrecordedDelta",
    "VersionContents",
    "VersionReader",
    "VersionStorage",
    "VersionWriter",
    "WARMUP",
    "add_file",
    "address_parts",
    "carry_warmup",
    "check_downgrade",
    "check_name",
    "check_version",
    "default_memory",
    "delta_digest",
    "dump_warmup",
    "find_damage",
    "identity_of",
    "is_address",
    "is_written_to",
    "listed",
    "narrowed",
    "newest_trusted",
    "open_repository",
    "open_snapshot",
    "open_store",
    "parse_warmup",
    "prunable",
    "re_sign",
    "repair",
    "root_digest",
    "root_hash",
    "sealed",
    "sha256",
    "stored",
    "table_file",
    "unfinished",
    "unknown_model",
    "unrecorded_deltas",
    "widened",
]
