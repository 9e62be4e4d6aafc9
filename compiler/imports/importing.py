"""Import somebody else's model: a SavedModel, a Keras or an ONNX file (`freshet import`).

Two importers write packages. The compiler's own (importer) translates a model to a TensorFlow graph and cuts it into
lookups and a dense graph, which passes improve and every backend computes. An ONNX file with an operator that has no
translation is served by the other (onnx_native): ONNX Runtime computes it as it is. Which one it is shows in the file's
operators, before TensorFlow is imported; a file that is refused later, in the middle of its translation, is tried
natively too. One that only lacks samples is not: with them its embeddings become tables that take deltas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from freshet_serving.compiler.building.compile import BUCKETS
from freshet_serving.compiler.imports.samples_required import SamplesRequired
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository import (
    NO_KEYS,
    Keyring,
    Repository,
    VersionReader,
    VersionWriter,
    check_name,
    open_repository,
)

ONNX = ".onnx"


class ModelImporter(Protocol):
    """An opened and tried model."""

    def publish(self, repository: Repository, writer: VersionWriter, buckets: Sequence[int]) -> VersionReader:
        """Write and commit the version.

        Args:
            repository: The model repository.
            writer: Writes the version.
            buckets: Batch sizes to compile for.
        """

    def analyse(self) -> dict[str, Any]:
        """Return the report of the import."""


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
    """

    signature: str = "serving_default"
    ragged: Mapping[str, tuple[str, ...]] | None = None
    sparse: Mapping[str, tuple[str, ...]] | None = None
    samples: Mapping[str, Any] | None = None
    buckets: Sequence[int] = BUCKETS
    user: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ImportResult:
    """Result of an import.

    Attributes:
        folder: Folder of the committed version.
        report: The report, as in the manifest's notes.
        passes: Effects of the passes on the dense graph (compiler.building.parts).
    """

    folder: Path
    report: dict[str, Any]
    passes: list[str]


def import_model(
    source: Path,
    repository: Path | str,
    model: str,
    version: int | None = None,
    options: ImportOptions | None = None,
    keyring: Keyring = NO_KEYS,
) -> ImportResult:
    """Import a model as <repository>/<model>/<version>.

    The source may lie in that very folder: the package is then written beside it.

    Args:
        source: The model's folder or file.
        repository: The model repository.
        model: Name of the model.
        version: Number of the version; None for the next one.
        options: Options of the import.
        keyring: Keys to sign with.

    Returns:
        The committed version and its report.

    Raises:
        BadInput: The model cannot be imported; other FreshetErrors are possible, each with one line that says what is
            wrong.
    """
    options = options or ImportOptions()
    check_name(model, "model")
    opened_repository = open_repository(repository, create=True).with_keys(keyring)
    number = version or max(opened_repository.versions(model), default=0) + 1
    target = opened_repository.path(model, number).resolve()
    beside = source.resolve() == target or source.resolve().parent == target
    refused: list[BadInput] = []
    for attempt in _attempts(source, options, refused):
        try:
            with opened_repository.writer(model, number, beside) as writer, attempt() as importer:
                published = importer.publish(opened_repository, writer, options.buckets)
                notes = published.manifest.notes
                return ImportResult(published.folder, notes["import"], notes["passes"])
        except BadInput as error:
            refused.append(error)
    raise refused[0]


def analyse(source: Path, options: ImportOptions | None = None) -> dict[str, Any]:
    """Return the report of an import without writing anything.

    Args:
        source: The model's folder or file.
        options: Options of the import.
    """
    refused: list[BadInput] = []
    for attempt in _attempts(source, options or ImportOptions(), refused):
        try:
            with attempt() as importer:
                return importer.analyse()
        except BadInput as error:
            refused.append(error)
    raise refused[0]


def _attempts(
    source: Path, options: ImportOptions, refused: Sequence[BadInput]
) -> Iterator[Callable[[], AbstractContextManager[ModelImporter]]]:
    """Yield the ways to import a model, in order; each is for a model that those before have refused."""
    why = ""
    if source.suffix == ONNX and source.is_file():
        from freshet_serving.compiler.imports.onnx_graph.operators import untranslated

        why = untranslated(source)
    if not why:
        yield lambda: _translated(source, options)
        if refused and isinstance(refused[0], SamplesRequired):
            return
        why = f"its translation was refused: {refused[0]}" if refused else ""
    if source.suffix == ONNX and source.is_file():
        yield lambda: _native(source, why, options)


@contextmanager
def _native(source: Path, why: str, options: ImportOptions) -> Iterator[ModelImporter]:
    from freshet_serving.compiler.imports.onnx_native.native_import import NativeImporter

    yield NativeImporter(source, why, options.samples, options.user)


@contextmanager
def _translated(source: Path, options: ImportOptions) -> Iterator[ModelImporter]:
    from freshet_serving.compiler.frameworks import quiet
    from freshet_serving.compiler.imports.foreign import open_source
    from freshet_serving.compiler.imports.importer import Importer

    with open_source(source, options.signature, options.ragged, options.sparse) as opened, quiet():
        yield Importer(opened, options.samples, options.user)
