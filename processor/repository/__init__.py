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

Names load on first use (processor.lazy_names).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from freshet_serving.processor.lazy_names import lazy_names

if TYPE_CHECKING:
    from freshet_serving.processor.repository import (
        log,
        model_repository,
        storage,
        version_folders,
        version_record,
        version_records,
    )
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
    __getattr__ = lazy_names(__name__, __file__)
