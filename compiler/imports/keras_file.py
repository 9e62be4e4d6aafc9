"""Convert a Keras file from an untrusted source to a SavedModel.

Before anything is unpacked, the archive is checked not to be a decompression bomb and its configuration to be of
bounded size. A configuration names classes and functions: only those of Keras that contain no user code are allowed; it
is also loaded in safe mode. Refused are a vocabulary that names a file, and weights stored anywhere but in the file
itself: HDF5 supports links to other files, and external storage.
"""

from __future__ import annotations

import json
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]

from freshet_serving.compiler.frameworks import quiet
from freshet_serving.compiler.imports.error_reason import reason_of
from freshet_serving.processor.errors import BadInput, TooLarge

CONFIG = "config.json"
WEIGHTS = ".h5"
MAX_FILES = 10_000
MAX_CONFIG_NBYTES = 64 << 20
MAX_UNPACKED_NBYTES = 64 << 30
MAX_OBJECTS = 1_000_000
# DEFLATE compresses by at most 1032 to 1; weights hardly compress at all, JSON about ten to one.
MAX_PACKING = 200
KERAS_MODULES = ("keras.layers", "keras.initializers", "keras.regularizers", "keras.constraints", "keras.activations")
KERAS_SOURCES = tuple(f"keras.src.{part}" for part in ("layers", "models", "ops", "backend.common", "dtype_policies"))
KERAS_PLAIN = ("keras", "keras.models", "keras.ops", "keras.optimizers", "keras.losses", "keras.metrics", "builtins")


def export_keras(path: Path, folder: Path) -> None:
    """Write a Keras file as a SavedModel into the new `folder`; raise BadInput or TooLarge if it is refused."""
    # Imported only here, because other models do not need it.
    from freshet_serving.compiler.frameworks import keras

    _check_archive(path)
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = keras.saving.load_model(path, compile=False, safe_mode=True)
            model.export(str(folder), format="tf_saved_model", verbose=False)
    except Exception as error:
        raise BadInput(f"source: Keras cannot load the file: {reason_of(error)}") from None


def _check_archive(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            _check_entries(archive.infolist())
            nbytes = archive.getinfo(CONFIG).file_size
            if nbytes > MAX_CONFIG_NBYTES:
                raise TooLarge(f"source: expected {CONFIG} of at most {MAX_CONFIG_NBYTES} bytes, got {nbytes}")
            _check_config(json.loads(archive.read(CONFIG)))
            for entry in archive.infolist():
                if entry.filename.endswith(WEIGHTS):
                    _check_weights(archive, entry)
    except (zipfile.BadZipFile, KeyError, ValueError, RecursionError, NotImplementedError, OSError):
        raise BadInput(f"source: expected a .keras file: a zip archive with {CONFIG}") from None


def _check_entries(entries: list[zipfile.ZipInfo]) -> None:
    """Check the archive's directory before any file is unpacked; raise BadInput or TooLarge."""
    if len(entries) > MAX_FILES:
        raise TooLarge(f"source: expected at most {MAX_FILES} files in the archive, got {len(entries)}")
    if len({entry.filename for entry in entries}) < len(entries):
        raise BadInput("source: two files of the archive have one name")
    unpacked = 0
    for entry in entries:
        parts = entry.filename.replace("\\", "/").split("/")
        if entry.filename.startswith("/") or ".." in parts or ":" in parts[0]:
            raise BadInput("source: a path in the archive is outside it")
        unpacked += entry.file_size
        if entry.file_size > MAX_PACKING * max(entry.compress_size, 1024):
            raise TooLarge("source: the archive unpacks to more than its size allows")
    if unpacked > MAX_UNPACKED_NBYTES:
        raise TooLarge(f"source: the archive unpacks to {unpacked} bytes, expected at most {MAX_UNPACKED_NBYTES}")


def _check_weights(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    """Raise BadInput unless all data of an HDF5 file is in it, under its own links."""
    with tempfile.TemporaryDirectory(prefix="freshet-import-") as folder:
        unpacked = archive.extract(entry, folder)
        try:
            with h5py.File(unpacked, "r") as file:
                _check_group(file)
        except (OSError, RuntimeError, KeyError, ValueError):
            raise BadInput("source: the file's weights are not an HDF5 file, or are damaged") from None


def _check_group(file: Any) -> None:
    groups, seen = [file], 0
    while groups:
        group = groups.pop()
        for name in group:
            seen += 1
            if seen > MAX_OBJECTS:
                raise TooLarge(f"source: expected at most {MAX_OBJECTS} weights")
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise BadInput("source: the weights file contains external links; refused")
            item = group[name]
            if isinstance(item, h5py.Group):
                groups.append(item)
            elif not isinstance(item, h5py.Dataset) or item.external or item.is_virtual:
                raise BadInput("source: the weights are stored in another file; refused")


def _check_config(value: Any) -> None:
    """Check a Keras configuration recursively; raise BadInput for what could run code or read files."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack.extend(value)
        if not isinstance(value, dict):
            continue
        stack.extend(value.values())
        name, module = value.get("class_name"), value.get("module")
        if name in ("Lambda", "__lambda__", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "TFSMLayer"):
            raise BadInput(f"source: a {name} layer contains code; refused: rewrite it with layers or ops of Keras")
        if isinstance(name, str) and module is not None and not _is_keras(module):
            raise BadInput(f"source: {name[:64]!r} is not a class of Keras itself; export a SavedModel instead")
        if name == "function" and not str(module).startswith("keras."):
            raise BadInput("source: the configuration contains a Python function; refused")
        if isinstance(value.get("vocabulary"), str):
            raise BadInput("source: a vocabulary refers to a file; save the model with the vocabulary inside")


def _is_keras(module: Any) -> bool:
    if not isinstance(module, str):
        return False
    return module in KERAS_PLAIN or any(
        module == root or module.startswith(f"{root}.") for root in (*KERAS_MODULES, *KERAS_SOURCES)
    )
