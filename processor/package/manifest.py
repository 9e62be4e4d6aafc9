"""model.json, the description of a version, schema-checked when it is read and when it is written.

The manifest is written last, by atomic rename: if it exists, every file that it names is complete. A reader rejects
every key that it does not know, except under "notes", which is free for tools to use.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput, first_of
from freshet_serving.processor.package.entities import NOT_GIVEN, EntityEntry
from freshet_serving.processor.package.input_fillers import UNREAD, InputFiller, input_fillers
from freshet_serving.processor.package.json_dataclasses import build
from freshet_serving.processor.package.manifest_checks import fills, unique, validate_features, validate_graphs, want
from freshet_serving.processor.package.manifest_entries import (
    DECLARED,
    DTYPES,
    FORMAT_1,
    HEX64,
    KEY_ID,
    NAME,
    OUTPUT_DTYPES,
    PRECISIONS,
    SCORE,
    SIGNATURE,
    ExecutableEntry,
    Feature,
    File,
    Input,
    Output,
    StageEntry,
    TableEntry,
)
from freshet_serving.processor.package.replies import (
    DEFAULT_SIGNATURE,
    INTEGERS,
    PIECES,
    STRING,
    ServingSignature,
    texts,
    validate_labels,
    validate_own_names,
    validate_signatures,
)
from freshet_serving.processor.package.sections import check_sections, dump_sections, filled_by, parse_sections
from freshet_serving.processor.package.sequences import UNSCALED, SequenceEntry
from freshet_serving.processor.package.stage_entries import StageLookup
from freshet_serving.processor.package.subgraphs import Subgraph, subgraphs, undivided
from freshet_serving.processor.package.tensors import RECORD, STORED_TYPES
from freshet_serving.processor.package.transforms import MAX_TRANSFORMS, ColumnShape, Transform

FORMAT_2 = "freshet/2"
SIGNED = ("key", "signature", "edition", "vouched")
"""Keys that an unsigned manifest does not have."""
MAX_MANIFEST_NBYTES = 64 << 20
ITEM_IDS, SCORES = "item_ids", "scores"
RANKED_OUTPUTS = {dtype: [Output(ITEM_IDS, dtype=dtype), Output(SCORES)] for dtype in ("int64", "uint64", STRING)}
"""Outputs of a request for the best items, [users, k] each, by the type of the items' ids."""

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class TrustedRecordPrefix:
    """Records that a manifest's signature vouches for; the SHA-256 of the last one names all before it."""

    number: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The whole of model.json.

    Attributes:
        created_at: Unix seconds.
        width: Columns of the dense input.
        dense: Shape of every dense tensor (float32), by name.
        executables: For each subgraph and bucket, the preferred one first, then its replacements.
        event_time: [first, last] event of the training data in Unix seconds, or [].
        format: FORMAT_2, or FORMAT_1 for a version that an older server wrote.
        notes: Free for tools to use.
        graphs: Subgraphs by name; {} for one that reads all features as one matrix
            (processor.package.subgraphs.subgraphs).
        copies: Tables whose rows an imported model holds a second time: by table, the dense weight that does, or "" for
            a constant of the stage. Delta.check_fits() rejects a delta that would change only one of the two.
        sections: What extensions read of the file, by its keys there (processor.ports.Section).
        signatures: Signatures of an imported model that has several; [] for one that replies with all outputs.
        own_names: Inputs by the names that an imported model's signature gives them, where names here cannot be those.
        key: Id of the key that signed to_sign(), "" if unsigned.
        edition: Number of times it was signed again.
        fillers: What fills the inputs that a request may leave out, by input; not part of the file, as those below.
        texts: Labels by output of strings, as replies take them.
        plain: Whether all outputs are float32 [n, columns], as the engine computes them, and there is one signature.
    """

    model: str
    version: int
    arch: str
    created_at: float
    inputs: list[Input]
    features: list[Feature]
    tables: list[TableEntry]
    outputs: list[Output]
    width: int
    dense: dict[str, list[int]]
    files: dict[str, File]
    executables: list[ExecutableEntry] = field(default_factory=list)
    stage: StageEntry | None = None
    transforms: list[Transform] = field(default_factory=list)
    event_time: list[float] = field(default_factory=list)
    format: str = FORMAT_2
    notes: dict[str, Any] = field(default_factory=dict)
    graphs: dict[str, Subgraph] = field(default_factory=dict)
    sequences: list[SequenceEntry] = field(default_factory=list)
    copies: dict[str, str] = field(default_factory=dict)
    entities: list[EntityEntry] = field(default_factory=list)
    sections: dict[str, Any] = field(default_factory=dict)
    signatures: list[ServingSignature] = field(default_factory=list)
    own_names: dict[str, str] = field(default_factory=dict)
    key: str = ""
    signature: str = ""
    edition: int = 0
    vouched: TrustedRecordPrefix | None = None
    fillers: dict[str, InputFiller] = field(init=False, repr=False, compare=False, default_factory=dict)
    texts: dict[str, NDArray[Any]] = field(init=False, repr=False, compare=False, default_factory=dict)
    plain: bool = field(init=False, repr=False, compare=False, default=False)

    def __post_init__(self) -> None:
        as_computed = all(o.dims is None and o.dtype == "float32" and not o.flat for o in self.outputs)
        object.__setattr__(self, "plain", as_computed and not self.signatures)
        self.texts.update({o.name: texts(o.labels) for o in self.outputs if o.labels})
        if self.sections or self.entities or self.sequences:
            read = {f.input for f in self.features} | {name for t in self.transforms for name in t.inputs}
            read |= {i.name for i in self.inputs} if self.stage else set()
            self.fillers.update(input_fillers(self.filled, self.entities, read, self.sequences))

    @property
    def filled(self) -> dict[str, InputFiller]:
        """The inputs that sections of extensions fill, and by what."""
        return filled_by(self.sections)

    @property
    def read_inputs(self) -> list[Input]:
        """The inputs without keys that only find what others are filled with."""
        keys = {name for name, filler in self.fillers.items() if filler.kind == UNREAD}
        return [i for i in self.inputs if i.name not in keys]

    def expected_inputs(self, sent: Container[str]) -> list[Input]:
        """Return the inputs to read from a request: those that it sends, and those that nobody fills."""
        if not self.fillers:
            return self.inputs
        return [i for i in self.inputs if i.name in sent or i.name not in self.fillers]

    def origins(self, names: Iterable[str]) -> set[str]:
        """Return the inputs of the request that these inputs and transforms are made of."""
        made_of, origins = {t.name: t.inputs for t in self.transforms}, set(names)
        while computed := origins & made_of.keys():
            origins = (origins - computed).union(*(made_of[name] for name in computed))
        return origins

    def own_name(self, name: str) -> str:
        """Return the name of an input in the model's signature."""
        return next((key for key, ours in self.own_names.items() if ours == name), name)

    def by_input(self, sent: Mapping[str, V]) -> Mapping[str, V]:
        """Return what a request sends by input, whichever of its names it uses; raises BadInput if it uses both."""
        if not self.own_names:
            return sent
        for key, name in self.own_names.items():
            want(key not in sent or name not in sent, f"inputs: expected one of {key[:64]!r} and {name!r}, got both")
        return {self.own_names.get(name, name): value for name, value in sent.items()}

    def to_json(self) -> bytes:
        """Return the file's bytes; raises BadInput if the manifest contradicts itself."""
        validate(self)
        # Sections are written by their extensions, as keys of their own in the place of this field.
        written = dump_sections(self.sections)
        document: dict[str, Any] = {}
        for key, value in dataclasses.asdict(dataclasses.replace(self, sections={})).items():
            document |= written if key == "sections" else {key: value}
        del document["fillers"], document["texts"], document["plain"]
        if self.format == FORMAT_1:
            from freshet_serving.processor.package import format1

            document = format1.to_format_1(document)
        else:
            document["graphs"] = {name: dataclasses.asdict(graph) for name, graph in subgraphs(self).items()}
        for name in ("transforms", "copies", "sequences", "entities", "signatures", "own_names"):
            # Left out if empty: servers that predate them reject unknown keys.
            if not document[name]:
                del document[name]
        staged = document["stage"]["outputs"] if document["stage"] else ()
        filters = [spec for entity in document.get("entities", ()) for spec in entity["filters"]]
        # The same for keys that few models have.
        for entry, key, default in (
            *((i, "declared", "") for i in (*document["inputs"], *staged, *filters)),
            *((i, "dims", None) for i in (*document["inputs"], *staged, *filters)),
            *((o, f.name, f.default) for o in document["outputs"] for f in dataclasses.fields(Output)[2:]),
            *((t, "unknown_key", None) for t in document["tables"]),
            *((s, "padding", None) for s in document.get("sequences", ())),
            *((e, "unknown", "default") for e in document.get("entities", ())),
            *((e, "text_nbytes", NOT_GIVEN) for e in document.get("entities", ())),
            *((e, "filters", list[Any]()) for e in document.get("entities", ())),
            *((c, *plain) for s in document.get("sequences", ()) for c in s["columns"] for plain in UNSCALED.items()),
        ):
            if entry[key] == default:
                del entry[key]
        for key in ("lookups", "growth"):
            if document["stage"] and not document["stage"][key]:
                del document["stage"][key]
        if not self.key:
            for name in SIGNED:
                del document[name]
            for entry in document["files"].values():
                del entry["sha256"]
        return (json.dumps(document, indent=1) + "\n").encode()

    def to_sign(self) -> bytes:
        """Return the signed bytes: those of the manifest without its signature."""
        return dataclasses.replace(self, signature="").to_json()

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """Parse and validate a manifest; raise BadInput that names the field, the expected and the actual value."""
        if len(data) > MAX_MANIFEST_NBYTES:
            raise BadInput(f"manifest: expected at most {MAX_MANIFEST_NBYTES} bytes, got {len(data)}")
        try:
            raw = json.loads(data)
        except (ValueError, RecursionError):
            raise BadInput("manifest: not valid JSON") from None
        written = raw.get("format", FORMAT_1) if isinstance(raw, dict) else FORMAT_2
        if written not in (FORMAT_2, FORMAT_1):
            raise BadInput(f"manifest: expected format {FORMAT_2!r} or {FORMAT_1!r}, got {str(written)[:40]!r}")
        user_width = 0
        if written == FORMAT_1:
            from freshet_serving.processor.package import format1

            user_width = format1.to_format_2(raw)
        sections = parse_sections(raw, OWN_KEYS) if isinstance(raw, dict) else {}
        manifest: Manifest = build(cls, raw, "manifest")
        if written == FORMAT_1:
            graphs = format1.graphs_of(manifest, user_width)
        else:
            plain = manifest.graphs == {SCORE: undivided(manifest)}
            want(bool(manifest.graphs), "manifest: 'graphs' is missing")
            graphs = {} if plain else manifest.graphs
        manifest = dataclasses.replace(manifest, format=written, graphs=graphs, sections=sections)
        validate(manifest)
        return manifest

    def replies(self, signature: str = "") -> dict[str, Output]:
        """Return the outputs that a signature ("": the default) replies with, by their names there; raise BadInput."""
        name_asked = signature or DEFAULT_SIGNATURE
        if not self.signatures and name_asked == DEFAULT_SIGNATURE:
            return {o.name: o for o in self.outputs}
        for entry in self.signatures:
            if entry.name == name_asked:
                by_name = {o.name: o for o in self.outputs}
                return {alias: by_name[name] for alias, name in entry.outputs.items()}
        names = ", ".join(s.name for s in self.signatures) or DEFAULT_SIGNATURE
        raise BadInput(
            f"Serving signature name: {signature[:64]!r} not found in signature def, expected {names[:200]!r}"
        )

    @property
    def embeddings(self) -> list[TableEntry]:
        """The tables of embedding rows: all but those of entities and those that are weights of the stage."""
        return [t for t in self.tables if t.dtype != RECORD and t.name not in self.stage_weights]

    def table(self, name: str) -> TableEntry:
        return first_of(t for t in self.tables if t.name == name)

    def check_reachable(self, table: str) -> None:
        """Raise BadInput if the model reads a table's rows in its stage too, which no delta changes."""
        if self.copies.get(table) == "":
            raise BadInput(
                f"table {table!r} cannot be changed by deltas: the model reads its rows in its stage too, where they "
                "are constants; publish a new version"
            )

    def input(self, name: str) -> Input:
        return first_of(i for i in self.inputs if i.name == name)

    @property
    def lookups(self) -> list[Feature]:
        """The features, and whatever else looks up rows, as features.

        Columns of sequences follow, floats among them, without a combiner and with offsets in their inputs; then each
        column or list of a stage's lookups, with offsets among the lookup's rows.
        """
        of_sequences = (
            Feature(c.name, c.kind, c.input, -1, "user", c.table, "none", s.max_length, *c.scaling, c.offset, c.width)
            for s in self.sequences
            for c in s.columns
        )
        return [*self.features, *of_sequences, *(f for lookup in self.stage_lookups for f in self.rows_of(lookup))]

    @property
    def stage_lookups(self) -> list[StageLookup]:
        return self.stage.lookups if self.stage else []

    @property
    def stage_weights(self) -> set[str]:
        """Tables that are weights inside the stage."""
        return {lookup.table for lookup in self.stage_lookups if lookup.whole}

    def rows_of(self, lookup: StageLookup) -> list[Feature]:
        """Return the rows that a stage reads as features: one a column, or one of a list; none of a weight."""
        if lookup.whole:
            return []
        shape, dim = self.shapes[lookup.input], self.table(lookup.table).dim
        kind, kinds = ("string", "strings") if shape.dtype == "string" else ("id", "ids")
        if shape.ragged:
            return [Feature(lookup.name, kinds, lookup.input, table=lookup.table, width=dim)]
        return [
            Feature(
                f"{lookup.name}.{column}", kind, lookup.input, column, table=lookup.table, offset=n * dim, width=dim
            )
            for n, column in enumerate(lookup.columns or [-1])
        ]

    @property
    def sources(self) -> list[Input]:
        """All inputs of features: the request's inputs, the stage's outputs, then the transforms."""
        shapes = self.shapes
        computed = [Input(t.name, *shapes[t.name]) for t in self.transforms]
        return [*self.inputs, *(self.stage.outputs if self.stage else ()), *computed]

    @property
    def shapes(self) -> dict[str, ColumnShape]:
        """Shapes of the request's inputs and the transforms, by name; raises BadInput for an invalid transform."""
        shapes = {i.name: ColumnShape(i.dtype, i.columns, i.ragged) for i in self.inputs}
        if self.transforms:
            # Loaded with the first manifest that has one.
            from freshet_serving.processor.package.transform_rules import shape_of
        for t in self.transforms:
            for name in t.inputs:
                want(
                    name in shapes,
                    f"manifest.transforms[{t.name}].inputs: {name[:64]!r} is not an input or an earlier transform",
                )
            shapes[t.name] = shape_of(t, [shapes[name] for name in t.inputs])
        return shapes


OWN_KEYS = frozenset(f.name for f in dataclasses.fields(Manifest) if f.init and f.name != "sections")


def ranks_items(manifest: Manifest) -> bool:
    """Report whether a manifest is that of requests for the best items (Answerer.read_as())."""
    return any(manifest.outputs is outputs for outputs in RANKED_OUTPUTS.values())


def validate(manifest: Manifest) -> None:
    """Raise BadInput unless every part of the manifest agrees with the others."""
    m = manifest
    want(m.format in (FORMAT_2, FORMAT_1), f"manifest.format: expected {FORMAT_2!r}, got {m.format[:40]!r}")
    want(NAME.fullmatch(m.model) is not None, f"manifest.model: expected a plain name, got {m.model[:64]!r}")
    want(m.version > 0, f"manifest.version: expected a positive integer, got {m.version}")
    want(0 < m.width <= 1 << 20, f"manifest.width: expected 1 to {1 << 20}, got {m.width}")
    want(len(m.event_time) in (0, 2), "manifest.event_time: expected [] or [first, last]")
    want(len(m.transforms) <= MAX_TRANSFORMS, f"manifest.transforms: expected at most {MAX_TRANSFORMS}")
    sources = m.sources
    unique([i.name for i in sources], "manifest.inputs")
    unique([f.name for f in m.features], "manifest.features")
    unique([t.name for t in m.tables], "manifest.tables")
    unique([o.name for o in m.outputs], "manifest.outputs")
    want(bool(m.inputs), "manifest.inputs: expected at least one")
    want(bool(m.outputs), "manifest.outputs: expected at least one")
    tables = {t.name for t in m.tables}
    for name, weight in m.copies.items():
        want(name in tables, f"manifest.copies: expected names of tables, got {name[:64]!r}")
        exists = weight in m.dense or not weight
        want(exists, f"manifest.copies[{name}]: expected a dense weight or '', got {weight[:64]!r}")
    if m.stage is not None:
        want(NAME.fullmatch(m.stage.runtime) is not None, "manifest.stage.runtime: expected a plain name")
        want(m.stage.file in m.files, "manifest.stage.file: not among manifest.files")
        from freshet_serving.processor.package.part_checks import validate_growth, validate_stage_lookups

        validate_stage_lookups(m.stage.lookups, m.stage.outputs, m.shapes, {t.name for t in m.tables})
        if m.stage.growth is not None:
            validate_growth(m.stage.growth, {i.name for i in m.inputs})
    for i in sources:
        where = f"manifest.inputs[{i.name}]"
        want(i.dtype in DTYPES, f"{where}.dtype: expected one of {', '.join(DTYPES)}, got {i.dtype[:40]!r}")
        want(0 <= i.columns <= 65536, f"{where}.columns: expected 0 to 65536, got {i.columns}")
        want(not i.ragged or i.columns == 0, f"{where}.columns: expected 0 for a ragged input, got {i.columns}")
        types = DECLARED[i.dtype]
        want(i.declared in types, f"{where}.declared: expected one of {types}, got {i.declared[:40]!r}")
        want(
            i.dims is None or (not i.ragged and fills(i.dims, i.columns or 1)),
            f"{where}.dims: expected sizes whose product is {i.columns or 1}, got {i.dims}",
        )
    for o in m.outputs:
        where = f"manifest.outputs[{o.name}]"
        want(o.dtype in OUTPUT_DTYPES, f"{where}.dtype: expected one of {OUTPUT_DTYPES}, got {o.dtype[:40]!r}")
        whole = o.dtype in (*INTEGERS, STRING) and o.dims is not None and o.columns % PIECES == 0
        want(not o.exact or whole, f"{where}.exact: expected false for this type and shape")
        numbers = o.columns // PIECES if o.exact else o.columns
        fits = o.dims is None or fills(o.dims, numbers)
        want(fits, f"{where}.dims: expected sizes whose product is {numbers}, got {o.dims}")
        validate_labels(where, o.dtype, o.labels)
        single = o.dims == [1] if o.exact else o.columns == 1 and o.dims is None
        want(not o.flat or single, f"{where}.flat: expected false for this shape")
    validate_signatures(m.signatures, [o.name for o in m.outputs])
    validate_own_names(m.own_names, {i.name for i in m.inputs})
    for t in m.tables:
        where = f"manifest.tables[{t.name}]"
        want(0 < t.dim <= 4096, f"{where}.dim: expected 1 to 4096, got {t.dim}")
        want(0 <= t.rows < 2**31, f"{where}.rows: expected 0 to 2**31-1, got {t.rows}")
        stored = ", ".join(STORED_TYPES)
        want(t.dtype in STORED_TYPES, f"{where}.dtype: expected one of {stored}, got {t.dtype[:40]!r}")
        want(len(t.default) in (0, t.dim), f"{where}.default: expected [] or {t.dim} numbers, got {len(t.default)}")
        want(-(2**63) <= (t.unknown_key or 0) < 2**63, f"{where}.unknown_key: expected an int64, got another number")
        want(0 <= t.hash_seed < 2**63, f"{where}.hash_seed: expected 0 to 2**63-1, got {t.hash_seed}")
    validate_features(m.features, sources, m.tables, m.width)
    if m.entities or any(t.dtype == RECORD for t in m.tables):
        from freshet_serving.processor.package.entity_records import validate_entities

        validate_entities(m)
    check_sections(m.sections, m)
    if m.sequences:
        from freshet_serving.processor.package.part_checks import validate_sequences

        dims = {t.name: t.dim for t in m.tables}
        validate_sequences(m.sequences, {i.name: i for i in m.inputs}, {i.name: i for i in sources}, dims)
    floats = {c.input for s in m.sequences for c in s.columns if c.kind == "floats"}
    floats |= {name for s in m.sequences if not s.columns for name in s.inputs}
    for i in sources:
        alone = i.ragged and i.dtype == "float32" and i.name not in floats
        want(not alone, f"manifest.inputs[{i.name}]: expected lists of float32 only as a column of a sequence")
    for name, shape in m.dense.items():
        want(
            len(shape) <= 8 and all(0 < d <= 1 << 31 for d in shape),
            f"manifest.dense[{name!r}]: expected a shape, got {shape}",
        )
    for e in m.executables:
        where = f"manifest.executables[{e.backend}-{e.target} b{e.bucket}]"
        want(NAME.fullmatch(e.backend) is not None, f"{where}.backend: expected a plain name")
        want(0 < e.bucket <= 1 << 20, f"{where}.bucket: expected 1 to {1 << 20}")
        want(e.file in m.files, f"{where}.file: not among manifest.files")
        want(e.subgraph in subgraphs(m), f"{where}.subgraph: {e.subgraph[:40]!r} is not among manifest.graphs")
        want(NAME.fullmatch(e.target) is not None, f"{where}.target: expected a plain name")
        want(e.precision in PRECISIONS, f"{where}.precision: expected one of {', '.join(PRECISIONS)}")
        want(not e.origin or e.origin in m.files, f"{where}.origin: not among manifest.files")
        want(not e.rows or e.rows in m.files, f"{where}.rows: not among manifest.files")
        want(min(e.cost_us, e.error, e.max_error) >= 0, f"{where}: expected cost_us, error, max_error of 0 or more")
        for value in (e.sha256, e.frozen):
            want(
                not value or HEX64.fullmatch(value) is not None, f"{where}: expected sha256 and frozen of 64 hex digits"
            )
        for w in e.weights:
            want(w in m.dense, f"{where}.weights: {w[:64]!r} is not among manifest.dense")
    validate_graphs(m)
    for path, file in m.files.items():
        parts = path.split("/")
        safe = all(NAME.fullmatch(p) and p not in (".", "..") for p in parts)
        want(
            safe and len(parts) <= 16, f"manifest.files: expected a relative path inside the version, got {path[:64]!r}"
        )
        want(file.nbytes >= 0, f"manifest.files[{path}].nbytes: expected 0 or more, got {file.nbytes}")
        hashed = HEX64.fullmatch(file.sha256) if m.key else not file.sha256
        want(bool(hashed), f"manifest.files[{path}].sha256: expected if and only if the manifest is signed")
    _validate_signature(m)


def _validate_signature(m: Manifest) -> None:
    if not m.key:
        want(not m.signature and not m.edition and m.vouched is None, "manifest.key: expected with a signature")
        return
    want(KEY_ID.fullmatch(m.key) is not None, f"manifest.key: expected 16 hexadecimal digits, got {m.key[:40]!r}")
    signed = not m.signature or SIGNATURE.fullmatch(m.signature)
    want(bool(signed), "manifest.signature: expected 128 hexadecimal digits")
    want(0 <= m.edition < 10**9, f"manifest.edition: expected 0 to {10**9}, got {m.edition}")
    if m.vouched is not None:
        complete = m.vouched.number > 0 and HEX64.fullmatch(m.vouched.sha256)
        want(bool(complete), "manifest.vouched: expected the number and SHA-256 of a record")
