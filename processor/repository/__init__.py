"""Model repositories: versions, their change logs and signatures.

log               the change log of a version: numbered records in its folder, read and written
version_records   decisions about full versions: held, withdrawn, released
version_record    one such decision, as a file
version           a version's folder, read through its manifest
version_writer    write a version's folder aside, and commit it by one rename
storage           access to the files of a version, in a folder or through a mirror; detection of changes to them
candidates        full versions that a gate has refused, beside the others
opening           open a repository by its address: a folder, or what an extension's storage has
model_repository  list and open models, versions and deltas, and find their folders
version_folders   the version folders of a repository's models, by number
mapped_file       a file that is served by memory mapping, and detection of its damage
trainer_report    progress of a model's trainer, in a file that it replaces every few seconds
erasures          requests to a trainer to forget a user
warmup            recorded requests that a version is warmed up with
envelope          signed envelope of files that are replaced when they change
keyring           signing key and trusted keys
trust_memory      memory of what was trusted, across restarts

Names load on first use (processor.lazy_names); a type checker reads the imports, and a test compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from freshet_serving.processor.lazy_names import lazy_names

if TYPE_CHECKING:
    from freshet_serving.processor.repository.erasures import MOST_KEY_NBYTES, Erasures, number_of
    from freshet_serving.processor.repository.keyring import NO_KEYS, Keyring, check_downgrade
    from freshet_serving.processor.repository.log.chain_record import (
        CHAIN,
        DELTA,
        HOLD,
        MAX_REASON,
        RELEASE,
        REPAIR,
        ROLLBACK,
        ChainRecord,
        delta_digest,
        root_digest,
        root_hash,
    )
    from freshet_serving.processor.repository.log.change_log import ChangeLog, DurableDelta
    from freshet_serving.processor.repository.log.contents import (
        NO_SCALES,
        TableChanges,
        VersionContents,
        narrowed,
        open_snapshot,
        stored,
        widened,
    )
    from freshet_serving.processor.repository.log.damage import find_damage, find_damaged_file, repair
    from freshet_serving.processor.repository.log.difference import (
        Difference,
        Float32s,
        Int64s,
        bits,
        differs,
        lookup_of,
        part_difference,
        places_of,
        restores_part,
        table_difference,
    )
    from freshet_serving.processor.repository.log.dropped_deltas import (
        FOR_GOOD,
        DroppedDeltas,
        UnrecordedDelta,
        unrecorded_deltas,
    )
    from freshet_serving.processor.repository.log.history import ChainLink, History
    from freshet_serving.processor.repository.log.pruning import prunable, unfinished
    from freshet_serving.processor.repository.log.re_signing import check_version, re_sign
    from freshet_serving.processor.repository.mapped_file import BYTES, CHANGES, SIZES, is_written_to
    from freshet_serving.processor.repository.model_repository import (
        FILE_SUFFIXES,
        SAVED_MODEL,
        Repository,
        check_name,
        listed,
        unknown_model,
    )
    from freshet_serving.processor.repository.opening import (
        SCHEMES,
        address_parts,
        is_address,
        open_repository,
        storage_of,
    )
    from freshet_serving.processor.repository.storage import FolderWatch, Identity, VersionStorage, identity_of
    from freshet_serving.processor.repository.trainer_report import (
        MAX_TRAINER_NBYTES,
        TrainerReport,
        TrainerState,
        parse_trainer_report,
        without_values,
    )
    from freshet_serving.processor.repository.trust_memory import TrustMemory, default_memory
    from freshet_serving.processor.repository.version import (
        CANDIDATES,
        DELTAS,
        DENSE,
        GRAPH,
        MANIFEST,
        SNAPSHOTS,
        TRAINER,
        WARMUP,
        SnapshotManifest,
        VersionReader,
        table_file,
    )
    from freshet_serving.processor.repository.version_record import WITHDRAW, VersionRecord
    from freshet_serving.processor.repository.version_records import WITHDRAWN
    from freshet_serving.processor.repository.version_writer import VersionWriter, add_file, sealed
    from freshet_serving.processor.repository.warmup import (
        GENERATION,
        INPUT,
        METADATA,
        OUTPUT,
        REQUEST,
        ROW,
        TIME,
        carry_warmup,
        dump_warmup,
        parse_warmup,
    )
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "erasures": "MOST_KEY_NBYTES Erasures number_of",
            "keyring": "NO_KEYS Keyring check_downgrade",
            "log.chain_record": (
                "CHAIN DELTA HOLD MAX_REASON RELEASE REPAIR ROLLBACK ChainRecord delta_digest root_digest root_hash"
            ),
            "log.change_log": "ChangeLog DurableDelta",
            "log.contents": "NO_SCALES TableChanges VersionContents narrowed open_snapshot stored widened",
            "log.damage": "find_damage find_damaged_file repair",
            "log.difference": (
                "Difference Float32s Int64s bits differs lookup_of part_difference places_of "
                "restores_part table_difference"
            ),
            "log.dropped_deltas": "FOR_GOOD DroppedDeltas UnrecordedDelta unrecorded_deltas",
            "log.history": "ChainLink History",
            "log.pruning": "prunable unfinished",
            "log.re_signing": "check_version re_sign",
            "mapped_file": "BYTES CHANGES SIZES is_written_to",
            "model_repository": "FILE_SUFFIXES SAVED_MODEL Repository check_name listed unknown_model",
            "opening": "SCHEMES address_parts is_address open_repository storage_of",
            "storage": "FolderWatch Identity VersionStorage identity_of",
            "trainer_report": ("MAX_TRAINER_NBYTES TrainerReport TrainerState parse_trainer_report without_values"),
            "trust_memory": "TrustMemory default_memory",
            "version": (
                "CANDIDATES DELTAS DENSE GRAPH MANIFEST SNAPSHOTS TRAINER WARMUP SnapshotManifest "
                "VersionReader table_file"
            ),
            "version_record": "WITHDRAW VersionRecord",
            "version_records": "WITHDRAWN",
            "version_writer": "VersionWriter add_file sealed",
            "warmup": ("GENERATION INPUT METADATA OUTPUT REQUEST ROW TIME carry_warmup dump_warmup parse_warmup"),
        },
    )

__all__ = [
    "BYTES", "CANDIDATES", "CHAIN", "CHANGES", "DELTA", "DELTAS", "DENSE", "FILE_SUFFIXES", "FOR_GOOD",
    "GENERATION", "GRAPH", "HOLD", "INPUT", "MANIFEST", "MAX_REASON", "MAX_TRAINER_NBYTES",
    "METADATA", "MOST_KEY_NBYTES", "NO_KEYS", "NO_SCALES", "OUTPUT", "RELEASE", "REPAIR", "REQUEST", "ROLLBACK",
    "ROW", "SAVED_MODEL", "SCHEMES", "SIZES", "SNAPSHOTS", "TIME", "TRAINER", "WARMUP", "WITHDRAW", "WITHDRAWN",
    "ChainLink", "ChainRecord", "ChangeLog", "Difference", "DroppedDeltas", "DurableDelta", "Erasures", "Float32s",
    "FolderWatch", "History", "Identity", "Int64s", "Keyring", "Repository", "SnapshotManifest", "TableChanges",
    "TrainerReport", "TrainerState", "TrustMemory", "UnrecordedDelta", "VersionContents", "VersionReader",
    "VersionRecord", "VersionStorage", "VersionWriter", "add_file", "address_parts", "bits", "carry_warmup",
    "check_downgrade", "check_name", "check_version", "default_memory", "delta_digest", "differs", "dump_warmup",
    "find_damage", "find_damaged_file", "identity_of", "is_address", "is_written_to", "listed", "log", "lookup_of",
    "model_repository", "narrowed", "number_of", "open_repository", "open_snapshot", "parse_trainer_report",
    "parse_warmup", "part_difference", "places_of", "prunable", "re_sign", "repair", "restores_part", "root_digest",
    "root_hash", "sealed", "storage", "storage_of", "stored", "table_difference", "table_file",
    "unfinished", "unknown_model", "unrecorded_deltas", "version_folders", "version_record", "version_records",
    "widened", "without_values",
]  # fmt: skip
