"""Store the machine code of kernels: one bundle in the package, and a file a kernel in a cache folder.

Contents are Numba's own pickles of what it compiled, beside object code.

Invariants
- Code is used only for what it was compiled from (its stamp), by the same Numba and llvmlite, and for a processor that
  has what it was compiled for: the feature level of a bundle (x86-64-v3, x86-64-v4), the same processor of a file.
- Nothing is read that another user can have written (kernels.file_trust).
- Files appear whole, by rename. A folder that cannot be written to, or is not trusted, is passed over; reading goes on
  in the next. No error of a file system reaches the caller.
- All kernels of a bundle are one object file, linked once: 0.05 s for all of them, where 77 files take half a second.
  Their symbols are numbered from 2^40 on, so that none is met again by what this process compiles.

Rejected: bundles by version of Python. Numba's code for 3.11, 3.12 and 3.13 calls the same functions of the C API on
the same structures; a test loads the bundle in each.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
from numba.core.compiler import compile_result
from numba.core.serialize import dumps

from freshet_serving.processor.kernels.file_trust import is_trusted

BUNDLES = Path(__file__).with_name("compiled")
SUFFIX = ".kernels"
MAGIC = b"freshet kernels 1\n"
PYTHONS = ((3, 11), (3, 12), (3, 13))
"""Versions of Python in which bundles are tested."""

COMPILERS = f"format 1, numba {numba.__version__}, llvmlite {llvmlite.__version__}"
V3 = ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
LEVELS = {"x86-64-v4": (*V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"), "x86-64-v3": V3}
"""Feature levels that bundles are made for, the best first, and the features of LLVM that a processor must have."""


class CodeStore:
    """Reads and writes the code of kernels.

    `recorded` has (name, stamp, result) of what was compiled, while a bundle is made; else None.
    """

    def __init__(self, bundle: Bundle | None, folders: Sequence[Path]) -> None:
        """Create a store; `folders` are for files of single kernels, in the order in which they are tried."""
        self._bundle, self._folders = bundle, folders
        self.recorded: list[tuple[str, str, Any]] | None = None

    @classmethod
    def here(cls) -> CodeStore:
        """Return the store of this process."""
        return cls(Bundle.here(), cache_folders(os.environ))

    def read(self, name: str, stamp: str, target_context: Any) -> Any:
        """Return a kernel, by its name with its signature and its stamp, as a CompileResult; None if not stored."""
        if self.recorded is not None:
            return None
        if self._bundle is not None and (payload := self._bundle.payload(name, stamp)) is not None:
            return _rebuilt(target_context, self._bundle.library(target_context.codegen()), payload)
        for folder in self._folders:
            path = folder / self._file(name)
            if path.is_file() and is_trusted(path):
                try:
                    compiled_from, state, payload = pickle.loads(path.read_bytes())
                except Exception:
                    # Unpickling damaged bytes may raise anything.
                    continue
                if compiled_from == stamp:
                    return _rebuilt(target_context, target_context.codegen().unserialize_library(state), payload)
        return None

    def write(self, name: str, stamp: str, result: Any) -> None:
        """Keep a kernel's CompileResult; arguments as of read()."""
        if self.recorded is not None:
            self.recorded.append((name, stamp, result))
        elif self._writable is not None:
            state, payload = result.library.serialize_using_object_code(), reduced(result)
            with suppress(OSError):
                write_whole(self._writable / self._file(name), dumps((stamp, state, payload)))

    @property
    def kept(self) -> str:
        """The folder in which compiled kernels are kept, for the log."""
        if self._writable is None:
            return "no cache folder can be written to, so every start compiles them: set NUMBA_CACHE_DIR or HOME"
        return f"they are kept in {self._writable}"

    @cached_property
    def _writable(self) -> Path | None:
        return next((folder for folder in self._folders if _can_write(folder)), None)

    def _file(self, name: str) -> str:
        digest = hashlib.sha256(f"{name} {sys.implementation.cache_tag} {COMPILERS} {processor_name()}".encode())
        return f"{name.partition('(')[0].rpartition('.')[2]}-{digest.hexdigest()[:24]}{SUFFIX}"


class Bundle:
    """All kernels of the package, compiled for one feature level."""

    def __init__(self, level: str, contents: bytes, header: dict[str, Any]) -> None:
        """Create a bundle of a file's bytes after its header, and the header: its compilers, stamps and parts."""
        self.level, self._contents, self._header = level, contents, header
        self._library: Any = None

    @classmethod
    def here(cls) -> Bundle | None:
        """Return the best bundle that suits this process, or None."""
        if sys.version_info[:2] not in PYTHONS or sys.implementation.name != "cpython":
            return None
        return next((bundle for level in supported_levels() if (bundle := cls.read(BUNDLES, level)) is not None), None)

    @classmethod
    def read(cls, folder: Path, level: str) -> Bundle | None:
        """Return the bundle of a level in a folder; None if there is none, it is another compiler's or not trusted."""
        path = folder / f"{level}{SUFFIX}"
        if not path.is_file() or not is_trusted(path):
            return None
        try:
            contents = path.read_bytes()
        except OSError:
            return None
        start = len(MAGIC) + 8
        end = start + int.from_bytes(contents[len(MAGIC) : start], "little")
        try:
            header = json.loads(contents[start:end]) if contents.startswith(MAGIC) else {}
        except ValueError:
            return None
        return cls(level, contents[end:], header) if header.get("compilers") == COMPILERS else None

    @staticmethod
    def write(
        folder: Path, level: str, object_code: bytes, bitcode: bytes, kernels: Sequence[tuple[str, str, Any]]
    ) -> None:
        """Write a bundle to a folder, which is created.

        Args:
            object_code: All kernels, as bytes of an object file.
            bitcode: The same as LLVM's bitcode, for functions that call kernels.
            kernels: (name, stamp, reduced result) of each kernel.
        """
        contents, parts = bytearray(), {}
        pickled = [(name, dumps(payload)) for name, _, payload in kernels]
        for name, data in (("object", object_code), ("bitcode", bitcode), *pickled):
            parts[name] = [len(contents), len(data)]
            contents += data
        stamps = {name: stamp for name, stamp, _ in kernels}
        header = json.dumps({"compilers": COMPILERS, "stamps": stamps, "parts": parts}).encode()
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{level}{SUFFIX}", MAGIC + len(header).to_bytes(8, "little") + header + contents)

    def payload(self, name: str, stamp: str) -> Any:
        """Return what Numba needs of a kernel beside the library, or None if the bundle has none of this stamp."""
        return pickle.loads(self._part(name)) if self._header["stamps"].get(name) == stamp else None

    def library(self, codegen: Any) -> Any:
        """Return Numba's library of all kernels; the first call links it."""
        if self._library is None:
            state = (f"freshet kernels for {self.level}", "object", (self._part("object"), self._part("bitcode")))
            self._library = codegen.unserialize_library(state)
        return self._library

    def _part(self, name: str) -> bytes:
        start, length = self._header["parts"][name]
        return self._contents[start : start + length]


def supported_levels() -> list[str]:
    """Return the feature levels that this processor has, the best first."""
    present = _features()
    return [level for level, features in LEVELS.items() if all(present.get(feature) for feature in features)]


def cache_folders(environ: Mapping[str, str]) -> list[Path]:
    """Return the folders for single kernels: the user's choice, the package, the user's cache."""
    folders = [BUNDLES]
    if chosen := environ.get("NUMBA_CACHE_DIR"):
        folders.insert(0, Path(chosen) / "freshet")
    if (cache := user_cache(environ)) is not None:
        folders.append(cache / "kernels")
    return folders


def user_cache(environ: Mapping[str, str]) -> Path | None:
    """Return our folder in the user's cache; None without a home."""
    home = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home, "freshet") if os.path.isabs(home) else None


def reduced(result: Any) -> tuple[Any, ...]:
    """Return what Numba needs of a compiled kernel beside its library, without its annotated source."""
    _, fndesc, environment, signature, _, _, _, initialisers, environments = result._reduce()
    return fndesc, environment, signature, initialisers, environments


def _rebuilt(target_context: Any, library: Any, payload: tuple[Any, ...]) -> Any:
    """Return a stored kernel as Numba's CompileResult, from its library and what reduced() returned."""
    fndesc, environment, signature, initialisers, environments = payload
    for initialise in initialisers:
        initialise()
    result = compile_result(
        target_context=target_context,
        typing_context=target_context.typing_context,
        library=library,
        environment=environment,
        entry_point=target_context.get_executable(library, fndesc, environment),
        fndesc=fndesc,
        type_annotation="",
        signature=signature,
        objectmode=False,
        lifted=(),
        reload_init=initialisers,
        referenced_envs=environments,
    )
    for referenced in environments:
        library.codegen.set_env(referenced.env_name, referenced)
    return result


def write_whole(path: Path, contents: bytes) -> None:
    """Write a file that everybody may read, so that it appears whole under its name."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".kernel-")
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o644)
            file.write(contents)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _can_write(folder: Path) -> bool:
    """Report whether files can be written to a folder, which is created, and will be trusted there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return is_trusted(folder)
    except OSError:
        return False


def _features() -> dict[str, bool]:
    """Return LLVM's names of features -> whether this processor has them."""
    try:
        return dict(llvm.get_host_cpu_features())
    except RuntimeError:
        return {}


def processor_name() -> str:
    """Return a text that tells processors apart for which Numba would compile differently."""
    name, features = (getattr(numba.config, option) for option in ("CPU_NAME", "CPU_FEATURES"))
    if features is None:
        features = sorted(_features().items())
    return f"{llvm.get_process_triple()} {name or llvm.get_host_cpu_name()} {features}"
