"""Import somebody else's model: a SavedModel, a Keras or an ONNX file (`freshet import`).

Two importers write packages. The compiler's own (importer) translates a model to a TensorFlow graph and cuts it into
lookups and a dense graph, which passes improve and every backend computes. The other (onnx_native) takes ONNX files,
and no TensorFlow: it cuts out the lookups, and ONNX Runtime computes the rest as it is. An ONNX file is imported

- natively where TensorFlow is not installed, or where an operator of it has no translation;
- translated if natively it would be refused, or would lack something (NativeImporter.shortfall: weights or embeddings
  that take no deltas, a user's part that is computed once);
- translated if nothing of it is then left to TensorFlow, for the passes, backends and precisions, or with --translate;
- natively otherwise, and if its translation is refused: then the server needs no TensorFlow, and takes half the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from freshet_serving.compiler.building.compile import BUCKETS
from freshet_serving.compiler.imports.sample_rows import SamplesRequired
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extras import MissingLibrary, how_to_install
from freshet_serving.processor.repository import (
    NO_KEYS,
    Keyring,
    Repository,
    VersionReader,
    VersionWriter,
    check_name,
    open_repository,
)

if TYPE_CHECKING:
    from freshet_serving.compiler.imports.onnx_native.native_import import NativeImporter

ONNX = ".onnx"
OF_OPTIONS = ("samples:", "user:")
"""Begin of messages about what was asked for, and not about the file."""
R = TypeVar("R")


class Shortfall(BadInput):
    """Raised for a file that one of the importers would serve less well than the other."""


class ModelImporter(Protocol):
    def publish(self, repository: Repository, writer: VersionWriter, buckets: Sequence[int]) -> VersionReader: ...

    def analyse(self) -> dict[str, Any]:
        """Return the report of the import, without writing anything."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Options of an import.

    Attributes:
        signature: Signature of a SavedModel.
        ragged: By input, the tensors that form a ragged input.
        sparse: By input, the tensors that form a sparse input.
        samples: Rows of every input to try the model on, where none can be generated.
        buckets: Batch sizes to compile for.
        user: Inputs of the user: one row for all candidates.
        translate: Whether to translate an ONNX file, whatever the native importer makes of it.
    """

    signature: str = "serving_default"
    ragged: Mapping[str, tuple[str, ...]] | None = None
    sparse: Mapping[str, tuple[str, ...]] | None = None
    samples: Mapping[str, Any] | None = None
    buckets: Sequence[int] = BUCKETS
    user: Sequence[str] = ()
    translate: bool = False


@dataclass(frozen=True, slots=True)
class ImportResult:
    """Result of an import: report and passes' effects, as in the manifest's notes, and what no gate has judged."""

    folder: Path
    report: dict[str, Any]
    passes: list[str]
    unjudged: list[str]


def import_model(
    source: Path,
    repository: Path | str,
    model: str,
    version: int | None = None,
    options: ImportOptions | None = None,
    keyring: Keyring = NO_KEYS,
) -> ImportResult:
    """Import a model as <repository>/<model>/<version>, by default the next one; return it and its report.

    The source may lie in that very folder: the package is then written beside it. Raise a FreshetError, with one line
    that says what is wrong, if the model cannot be imported.
    """
    options = options or ImportOptions()
    check_name(model, "model")
    opened_repository = open_repository(repository, create=True).with_keys(keyring)
    number = version or max(opened_repository.versions(model), default=0) + 1
    target = opened_repository.path(model, number).resolve()
    beside = source.resolve() == target or source.resolve().parent == target

    def publish(opening: AbstractContextManager[ModelImporter]) -> ImportResult:
        with opened_repository.writer(model, number, beside) as writer, opening as importer:
            published = importer.publish(opened_repository, writer, options.buckets)
            notes = published.manifest.notes
            return ImportResult(published.folder, notes["import"], notes["passes"], notes["gate"]["unjudged"])

    return _first_accepted(source, options, publish)


def analyse(source: Path, options: ImportOptions | None = None) -> dict[str, Any]:
    """Return the report of an import without writing anything."""

    def report(opening: AbstractContextManager[ModelImporter]) -> dict[str, Any]:
        with opening as importer:
            return importer.analyse()

    return _first_accepted(source, options or ImportOptions(), report)


def _first_accepted(
    source: Path, options: ImportOptions, run: Callable[[AbstractContextManager[ModelImporter]], R]
) -> R:
    """Return what `run` makes of the first importer that accepts a model; raise BadInput if none does."""
    if source.suffix != ONNX or not source.is_file():
        if options.translate:
            raise BadInput(f"translate: expected a file that ends in {ONNX}, got {source.name[:64]!r}")
        return run(_translated(source, options))
    from freshet_serving.compiler.imports.onnx_graph.operators import untranslated

    lacking = untranslated(source)
    if options.translate:
        if lacking:
            raise BadInput(f"{source.name[:64]}: {lacking}: import it without --translate")
        return run(_translated(source, options))
    if lacking:
        return run(_native(source, options, lacking))
    try:
        from freshet_serving.compiler import frameworks  # noqa: F401 - is it installed?
    except MissingLibrary:
        return _without_tensorflow(source, options, run)
    refused = _refused_natively(source, options)
    try:
        return run(_translated(source, options, stageless=refused is None))
    except BadInput as error:
        if refused is not None and not isinstance(refused, Shortfall):
            raise
        # With samples, what natively takes no deltas does.
        if refused is not None and isinstance(error, SamplesRequired):
            raise
        if not isinstance(error, Shortfall):
            return run(_native(source, options, f"its translation was refused: {error}"))
        why = str(error)
    try:
        return run(_native(source, options, why))
    except BadInput:
        return run(_translated(source, options))


def _refused_natively(source: Path, options: ImportOptions) -> BadInput | None:
    """Return why the native importer refuses a file, or a Shortfall; None if it does as much as a translation."""
    try:
        with _native(source, options) as importer:
            return Shortfall(importer.shortfall) if importer.shortfall else None
    except BadInput as error:
        return error


def _without_tensorflow(
    source: Path, options: ImportOptions, run: Callable[[AbstractContextManager[ModelImporter]], R]
) -> R:
    """Import an ONNX file natively where a translation is out of reach, and say what it would bring."""
    advice = f"{how_to_install('train')} and pass --translate"
    try:
        return run(_native(source, options, advice=advice))
    except BadInput as error:
        if str(error).startswith(OF_OPTIONS):
            raise
        raise BadInput(f"{source.name[:64]}: {error}; {advice}") from None


@contextmanager
def _native(source: Path, options: ImportOptions, why: str = "", advice: str = "") -> Iterator[NativeImporter]:
    """Open an ONNX file as it is: `why` it is not translated, and how it could be, are for the report."""
    from freshet_serving.compiler.imports.onnx_native.native_import import NativeImporter

    importer = NativeImporter(source, why, options.samples, options.user)
    if advice and importer.shortfall:
        importer.notes.append(f"{importer.shortfall}; for that, {advice}")
    yield importer


@contextmanager
def _translated(source: Path, options: ImportOptions, stageless: bool = False) -> Iterator[ModelImporter]:
    """Open a model by way of TensorFlow; raise Shortfall if `stageless` and a part of it is left to TensorFlow."""
    from freshet_serving.compiler.frameworks import quiet
    from freshet_serving.compiler.imports.foreign import open_source
    from freshet_serving.compiler.imports.importer import Importer

    with open_source(source, options.signature, options.ragged, options.sparse) as opened, quiet():
        importer = Importer(opened, options.samples, options.user)
        if stageless and importer.analyse()["sides"]["stage"]:
            raise Shortfall("a translation leaves a part of it to TensorFlow")
        yield importer
