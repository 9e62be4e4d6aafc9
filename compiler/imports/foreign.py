"""Open a model to import: a SavedModel folder, a Keras file or an ONNX file from an untrusted source.

Nothing of a model runs before its files are known to lie inside its folder, its archive is known not to be a
decompression bomb, and every operation that opening or serving it would run is allowed (compiler.imports.ops). Three of
those operations read files: variables come from the folder's own checkpoint, tables from its own assets, and a graph
that names any other file is refused before it runs. Keras and ONNX files are converted to SavedModels first, so that
there is one path from then on. TensorFlow's messages about a broken file are left out, because they contain paths.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from freshet_serving.compiler.frameworks import meta_graph_pb2, quiet, saved_model_pb2, tf
from freshet_serving.compiler.imports.error_reason import reason_of
from freshet_serving.compiler.imports.feeds import Feeds, FeedSpec
from freshet_serving.compiler.imports.foreign_graph import (
    ForeignGraph,
    Inliner,
    OptionalOutputs,
    Ref,
    functions_of,
    inline,
    parse,
)
from freshet_serving.compiler.imports.inputs import arrange
from freshet_serving.compiler.imports.keras_file import export_keras
from freshet_serving.compiler.imports.model_signatures import other_outputs, shared_inputs, signatures_of
from freshet_serving.compiler.imports.ops import GRAPH, OPENING, READING, check_ops
from freshet_serving.processor.errors import BadInput, NotFound, TooLarge, nearest_file
from freshet_serving.processor.package import ServingSignature, read_file

SERVE = "serve"
MAX_GRAPH_NBYTES = 2 << 30
MAX_FILES = 10_000
SIGNED = (
    "tf.saved_model.save() writes none for a model of Keras 3: write it with model.export(folder), save it as .keras, "
    "or pass signatures="
)
KINDS = "a SavedModel folder, a .keras or .onnx file"
BY_ONNX = "PyTorch's and scikit-learn's models come by ONNX (docs/how-to/import.md)"
KERAS_2 = "load Keras' old format with Keras and save it as .keras"
OTHERS = dict.fromkeys((".pkl", ".pickle", ".joblib", ".pt", ".pth", ".pt2", ".bin", ".safetensors"), BY_ONNX) | {
    ".h5": KERAS_2,
    ".hdf5": KERAS_2,
}
"""Suffixes of other libraries' files, each with the way to import such a model."""


@dataclass(frozen=True, slots=True, eq=False)
class ForeignModel:
    """An opened model.

    Attributes:
        kind: SavedModel | Keras | ONNX.
        session: Holds the variables and tables; open while the block that opened the model runs.
        signatures: Of a model with several: the chosen one, and those that read the same inputs.
        left_out: Names of the others.
        reference_check: Compares (feeds by node, outputs by name) of samples with the results of the file's own
            runtime, if that is not TensorFlow, and returns notes.
    """

    kind: str
    signature: str
    inputs: list[FeedSpec]
    outputs: dict[str, Ref]
    graph: ForeignGraph
    session: Any
    signatures: list[ServingSignature] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    reference_check: Callable[[list[tuple[Feeds, Feeds]]], list[str]] | None = None


@contextmanager
def open_source(
    path: Path,
    signature: str = "serving_default",
    ragged: Mapping[str, tuple[str, ...]] | None = None,
    sparse: Mapping[str, tuple[str, ...]] | None = None,
) -> Iterator[ForeignModel]:
    """Open a SavedModel folder, a Keras file or an ONNX file, ready to inspect and run.

    Args:
        ragged: Input -> names of its values and row splits among the signature's tensors.
        sparse: Input -> names of its indices, values and dense shape.

    Raises:
        BadInput: The model is invalid or refused.
        NotFound: There is no file.
        TooLarge: The model exceeds a limit.
    """
    if path.is_dir():
        with _open_saved_model(path, "SavedModel", signature, ragged or {}, sparse or {}) as source:
            yield source
    elif path.is_file():
        with tempfile.TemporaryDirectory(prefix="freshet-import-") as folder:
            exported, kind, groups, reference_check = Path(folder) / "model", "Keras", dict(ragged or {}), None
            if path.suffix == ".onnx":
                from freshet_serving.compiler.imports.onnx_graph.saved_model import save_onnx

                saved = save_onnx(path, exported)
                kind, groups, reference_check = "ONNX", saved.ragged | groups, saved.reference_check.check
            elif path.suffix.lower() in OTHERS:
                raise BadInput(f"source: expected {KINDS}, got {path.name[:64]!r}: {OTHERS[path.suffix.lower()]}")
            else:
                export_keras(path, exported)
            with _open_saved_model(exported, kind, signature, groups, sparse or {}) as source:
                yield replace(source, reference_check=reference_check)
    else:
        raise NotFound(
            f"source: expected {KINDS}, got {path.name[:64]!r}: No such file or directory{nearest_file(path)}"
        )


@contextmanager
def _open_saved_model(
    folder: Path,
    kind: str,
    signature: str,
    ragged: Mapping[str, tuple[str, ...]],
    sparse: Mapping[str, tuple[str, ...]],
) -> Iterator[ForeignModel]:
    _check_folder(folder)
    meta = _read(folder / "saved_model.pb")
    chosen = _signature(meta, signature)
    inputs, tensors = arrange(chosen.inputs, meta.graph_def, ragged, sparse)
    output_tensors = {name: info.name for name, info in sorted(chosen.outputs.items())}
    if not output_tensors or not all(output_tensors.values()):
        raise BadInput(f"signature {signature[:64]!r}: expected plain tensors as outputs")
    others = other_outputs(meta, signature)
    with quiet():
        optional = OptionalOutputs(
            {name: tensors.values() for name, tensors in others.items()},
            shared_inputs(meta, signature, tensors),
            GRAPH | {"@variable", "@table", "@input"},
        )
        graph, refs = inline(meta.graph_def, tensors, output_tensors.values(), optional if others else None)
        check_ops(_ops(graph), GRAPH | {"@variable", "@table", "@input"}, "graph")
        session = _restore(folder, meta, graph)
    outputs = {name: refs[tensor] for name, tensor in output_tensors.items()}
    signatures, more = signatures_of(meta, signature, outputs, refs, others)
    left_out = sorted(others.keys() - {s.name for s in signatures})
    try:
        yield ForeignModel(kind, signature, inputs, outputs | more, graph, session, signatures, left_out)
    finally:
        session.close()


def _ops(graph: ForeignGraph) -> Iterator[str]:
    yield from (node.op for node in graph.nodes.values())
    yield from (node.op for function in graph.library.function for node in function.node_def)


def _check_folder(folder: Path) -> None:
    base, files = folder.resolve(), 0
    if not (folder / "saved_model.pb").is_file():
        raise BadInput(f"source: no SavedModel: saved_model.pb is missing in {folder.name[:64]!r}")
    for part in ("saved_model.pb", "variables", "assets"):
        root = folder / part
        for path in (root, *root.rglob("*")) if root.exists() else ():
            files += 1
            if files > MAX_FILES:
                raise TooLarge(f"source: expected at most {MAX_FILES} files")
            if not path.resolve().is_relative_to(base):
                raise BadInput("source: a file is outside its folder")
            if not (path.is_file() or path.is_dir()):
                raise BadInput(f"source: {path.name[:64]!r} is not a regular file")


def _read(path: Path) -> Any:
    nbytes = path.stat().st_size
    if nbytes > MAX_GRAPH_NBYTES:
        raise TooLarge(f"source: saved_model.pb: expected at most {MAX_GRAPH_NBYTES} bytes, got {nbytes}")
    saved = saved_model_pb2.SavedModel()
    try:
        saved.ParseFromString(read_file(path, MAX_GRAPH_NBYTES).tobytes())
    except Exception:
        raise BadInput("source: saved_model.pb: not a SavedModel") from None
    metas = [m for m in saved.meta_graphs if SERVE in m.meta_info_def.tags]
    if not metas:
        raise BadInput(f"source: saved_model.pb: no graph tagged {SERVE!r}")
    return metas[0]


def _signature(meta: Any, name: str) -> Any:
    if name not in meta.signature_def:
        available = ", ".join(sorted(n for n in meta.signature_def if not n.startswith("__"))[:16])
        advice = "" if available else f": {SIGNED}"
        raise BadInput(f"signature {name[:64]!r} is not among the model's: {available or 'none'}{advice}")
    return meta.signature_def[name]


def _restore(folder: Path, meta: Any, graph: ForeignGraph) -> Any:
    """Return a session with what the graph needs: variables read from their files, tables filled."""
    saver = meta.saver_def
    assets = _assets(folder, meta)
    opening = [name for name in (_init_op(meta), parse(saver.restore_op_name)[0]) if name]
    handles = [parse(handle)[0] for handle in graph.handles.values()]
    definition = _closure(meta.graph_def, [*opening, *handles])
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    check_ops((node.op for node in nodes), GRAPH | OPENING, "graph")
    _check_files(definition, assets, saver.filename_tensor_name)
    holder = tf.Graph()
    options = tf.compat.v1.ConfigProto(device_count={"GPU": 0}, intra_op_parallelism_threads=2)
    # Every tensor is inspected, and values that an optimiser fuses away (x * sigmoid(x), Mish) would be missing,
    # whatever is fetched.
    options.graph_options.rewrite_options.disable_meta_optimizer = True
    session = tf.compat.v1.Session(graph=holder, config=options)
    reason = "this TensorFlow does not support it"
    try:
        with holder.as_default():
            tf.graph_util.import_graph_def(definition, name="")
        reason = "variables are missing or damaged"
        if saver.restore_op_name and handles:
            checkpoint = folder / "variables" / "variables"
            has_variables = checkpoint.with_name("variables.index").is_file()
            if not has_variables and any(n.op == "RestoreV2" for n in nodes):
                raise BadInput("source: variables are missing")
            if has_variables:
                session.run(parse(saver.restore_op_name)[0], {saver.filename_tensor_name: str(checkpoint)})
        reason = "its tables cannot be filled"
        if _init_op(meta):
            # An asset that the operation does not read is not in the graph, as in TensorFlow Serving's half_plus_two.
            graph_nodes = {node.name for node in definition.node}
            session.run(_init_op(meta), {name: path for name, path in assets.items() if parse(name)[0] in graph_nodes})
    except BadInput:
        session.close()
        raise
    except Exception as error:
        session.close()
        raise BadInput(f"source: {reason}: {reason_of(error)}") from None
    return session


def _init_op(meta: Any) -> str:
    """Return the operation that fills the tables; "" if there is none."""
    if "__saved_model_init_op" in meta.signature_def:
        return parse(meta.signature_def["__saved_model_init_op"].outputs["__saved_model_init_op"].name)[0]
    for key in ("saved_model_main_op", "legacy_init_op"):
        named = meta.collection_def[key].node_list.value if key in meta.collection_def else []
        if named:
            return parse(named[0])[0]
    return ""


def _assets(folder: Path, meta: Any) -> dict[str, str]:
    listed = list(meta.asset_file_def)
    old = "saved_model_assets"
    for packed in meta.collection_def[old].any_list.value if not listed and old in meta.collection_def else ():
        asset = meta_graph_pb2.AssetFileDef()
        packed.Unpack(asset)
        listed.append(asset)
    base, paths = (folder / "assets").resolve(), {}
    for asset in listed:
        path = (base / asset.filename).resolve()
        if not path.is_relative_to(base) or not path.is_file():
            raise BadInput("source: an asset is missing or outside its folder")
        paths[asset.tensor_info.name] = str(path)
    return paths


def _check_files(definition: Any, assets: Mapping[str, str], prefix: str) -> None:
    """Refuse graphs that read files other than their checkpoint, fed at tensor `prefix`, and assets, by tensor."""
    inputs = {f"asset/{i}": name for i, name in enumerate(assets)} | ({"prefix": prefix} if prefix else {})
    inliner = Inliner(definition, inputs)
    nodes = list(inliner.graph.nodes.values())
    # Functions called by branches and loops are not inlined: the origin of their files cannot be determined.
    inner = functions_of([node.definition for node in nodes if node.definition], definition.library)
    for op in sorted({node.op for function in inner.function for node in function.node_def} & READING):
        raise BadInput(f"source: operation {op} reads a file inside a branch or a loop; refused")
    from_assets = {node.name for node in nodes if node.name.startswith("asset/")}
    # A path may pass through a variable, if only assets are ever assigned to it.
    assigned: dict[str, list[str]] = {}
    for node in nodes:
        if node.op in ("Assign", "AssignVariableOp"):
            assigned.setdefault(node.inputs[0][0], []).append(node.inputs[1][0])
    from_assets |= {variable for variable, sources in assigned.items() if from_assets.issuperset(sources)}
    for node in nodes:
        if node.op == "RestoreV2" and node.inputs[0] != ("prefix", 0):
            raise BadInput("source: operation RestoreV2 reads a checkpoint that is not the model's own; refused")
        if node.op.startswith("InitializeTableFromTextFile") and node.inputs[1][0] not in from_assets:
            raise BadInput("source: a table is filled from a file that is not an asset of the model")


def _closure(graph_def: Any, names: Iterable[str]) -> Any:
    """Return the part of a GraphDef that these nodes need, control edges included."""
    nodes = {node.name: node for node in graph_def.node}
    needed: set[str] = set()
    stack = list(names)
    while stack:
        name = stack.pop()
        if name in needed:
            continue
        if name not in nodes:
            raise BadInput(f"graph: node {name[:80]!r} is missing")
        needed.add(name)
        stack.extend(parse(i.lstrip("^"))[0] for i in nodes[name].input)
    part = type(graph_def)()
    part.versions.CopyFrom(graph_def.versions)
    for name in sorted(needed):
        part.node.add().CopyFrom(nodes[name])
    part.library.CopyFrom(functions_of(part.node, graph_def.library))
    for node in part.node:
        node.device = ""
    return part
