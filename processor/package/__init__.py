"""The on-disk package format, read and written with numpy alone.

manifest    model.json, the description of a version
manifest_checks   whether features and subgraphs of a manifest agree with the rest
part_checks  whether sequences and what a stage reads agree with the rest, loaded where there are any
manifest_entries  what a manifest lists: inputs, features, tables, outputs, files, executables
combiners   how the rows of a list become the columns of a feature
delta       one file of changes since the parent step; merges several into one
tensors     safetensors files without a copy; the types that rows may be stored as
transforms  columns computed from a request's inputs
transform_rules  which inputs and numbers each transform accepts, and the shape of its result
entities    features by key
entity_records  what a record of an entity holds
record_texts  the strings of a record as they were given
replies     what the replies of each signature hold, and labels of outputs of strings
sections      sections of extensions in a manifest
sequences     a user's events as one input of the dense graph
stage_entries  an imported model's stage: rows of tables that it reads, and how much it computes
item_rows     an item's row in a next-item network: what is learned, and what is counted
subgraphs     named inputs and outputs of a version's dense graph, and what fills them
format1       manifests of format 1, read and written as those of format 2
whole_files  reads only regular files of bounded size, writes a file atomically
signature   key files, and signatures over bytes
json_dataclasses  builds dataclasses from parsed JSON
input_fillers     which inputs a request may leave out, and who fills each of them by a key

Names load on first use (processor.lazy_names).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from freshet_serving.processor.lazy_names import lazy_names

if TYPE_CHECKING:
    from freshet_serving.processor.package import item_rows, json_dataclasses, subgraphs
    from freshet_serving.processor.package.combiners import (
        COMBINER_OF_CODE,
        COMBINERS,
        DIVIDED_SUMS,
        NOT_COMBINED,
        ROOT_DIVIDED_SUMS,
    )
    from freshet_serving.processor.package.delta import (
        MAX_DELTA_NBYTES,
        MAX_TIME_S,
        MOST_IN_ROW,
        SUFFIX,
        Delta,
        DeltaBytes,
        DeltaRun,
        TableDelta,
        parse_delta,
        read_delta,
        read_delta_file,
        rows_of_file,
        stream_delta,
        write_delta,
    )
    from freshet_serving.processor.package.entities import DEFAULT, DROP, NOT_GIVEN, UNKNOWN, EntityEntry
    from freshet_serving.processor.package.entity_records import (
        Records,
        column_specs,
        derived,
        longest_read,
        names_keys,
        pack_records,
        record_layout,
        unpack_records,
    )
    from freshet_serving.processor.package.format1 import USER_VECTOR, side_columns
    from freshet_serving.processor.package.input_fillers import UNREAD, InputFiller, missing_input
    from freshet_serving.processor.package.manifest import (
        FORMAT_2,
        ITEM_IDS,
        MAX_MANIFEST_NBYTES,
        RANKED_OUTPUTS,
        SCORES,
        SIGNED,
        Manifest,
        TrustedRecordPrefix,
        ranks_items,
        validate,
    )
    from freshet_serving.processor.package.manifest_checks import MAX_TENSOR_NUMBERS
    from freshet_serving.processor.package.manifest_entries import (
        FLOATS,
        FORMAT_1,
        KEY_ID,
        KINDS,
        MAX_RANK,
        NAME,
        OUTPUT_DTYPES,
        PRECISIONS,
        SCORE,
        SIDES,
        SIGNATURE,
        USER,
        WHOLE,
        ExecutableEntry,
        Feature,
        File,
        Input,
        Output,
        StageEntry,
        TableEntry,
        feature_width,
    )
    from freshet_serving.processor.package.record_texts import text_nbytes
    from freshet_serving.processor.package.replies import (
        CLASSIFY,
        DEFAULT_SIGNATURE,
        INTEGERS,
        MAX_LABELS,
        MAX_SIGNATURES,
        PIECE_BITS,
        PIECES,
        PREDICT,
        REGRESS,
        STRING,
        ServingSignature,
        joined,
        labelled,
        labels_of,
    )
    from freshet_serving.processor.package.sections import section_lines
    from freshet_serving.processor.package.sequences import (
        KEEPS,
        MAX_EVENTS,
        SEQUENCE,
        TIME_UNITS,
        SequenceColumn,
        SequenceEntry,
        dense_sequences,
        expected_lists,
    )
    from freshet_serving.processor.package.signature import PublicKey, Signer, new_key
    from freshet_serving.processor.package.stage_entries import GrowthTerm, StageGrowth, StageLookup, weight_rows
    from freshet_serving.processor.package.subgraphs import (
        FEATURES,
        FLOPS,
        MATRIX,
        ROWS,
        USER_STATE,
        USER_TENSOR,
        GraphInput,
        Subgraph,
        batch_symbol,
        columns,
        divided,
        role,
        shorter,
        shorter_lengths,
        undivided,
        undivided_name,
        user_features,
    )
    from freshet_serving.processor.package.tensors import (
        ALIGNMENT,
        RECORD,
        ROW_TYPES,
        SCALED,
        STORED_TYPES,
        Tensors,
        all_below,
        array_crc32,
        crc32,
        file_crc32,
        header_checksum,
        map_file,
        parse_tensors,
        write_tensors,
    )
    from freshet_serving.processor.package.transform_rules import shape_of
    from freshet_serving.processor.package.transforms import (
        FORMAT,
        HASHES,
        MAX_CROSSED,
        MAX_HASHED_ROWS,
        ColumnShape,
        Transform,
        codes_a_value,
    )
    from freshet_serving.processor.package.whole_files import (
        atomic_file,
        durable_file,
        exclusive_file,
        fd_sha256,
        file_sha256,
        followed,
        fsync_folder,
        give_name,
        hidden_beside,
        inside,
        locked_folder,
        open_regular,
        read_file,
        same_content,
        sha256,
    )
else:
    __getattr__ = lazy_names(__name__)
