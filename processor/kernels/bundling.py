"""Compile all kernels of the package for a feature level, and link them into one bundle."""

from __future__ import annotations

import itertools
import os
from importlib import import_module
from pathlib import Path

import llvmlite.binding as llvm
from numba.core.bytecode import FunctionIdentity
from numba.core.registry import cpu_target
from rich.progress import track

from freshet_serving.processor.extras import EXTRA_OF
from freshet_serving.processor.kernels.code_store import Bundle, reduced
from freshet_serving.processor.kernels.kernel import store

PACKAGE = Path(__file__).parents[2]
FIRST_NUMBER = 1 << 40
"""Numba numbers the functions of a process and puts the number into their symbols; no process gets this far."""


def import_kernels(title: str = "kernels for this processor") -> None:
    """Import every module of the package that has kernels, which compiles those that are not stored.

    A module that needs a library of an extra is passed over where that is not installed.
    """
    root = PACKAGE.parent
    # A clone has links in place of folders.
    folders = ((Path(folder), names) for folder, _, names in os.walk(PACKAGE, followlinks=True))
    sources = (folder / name for folder, names in folders for name in names if name.endswith(".py"))
    files = sorted(file for file in sources if "\n@kernel(" in file.read_text())
    for file in track(files, title):
        try:
            import_module(".".join(file.relative_to(root).with_suffix("").parts))
        except ModuleNotFoundError as error:
            if error.name not in EXTRA_OF:
                raise


def write_bundle(folder: Path, level: str) -> None:
    """Compile every kernel and write the bundle of a level, which NUMBA_CPU_NAME names as well.

    Numba reads the processor that it compiles for from its environment variables, so this needs a process of its own.
    """
    FunctionIdentity._unique_ids = itertools.count(FIRST_NUMBER)
    store.recorded = []
    import_kernels(f"kernels for {level}")
    codegen = cpu_target.target_context.codegen()
    linked = llvm.parse_bitcode(store.recorded[0][2].library._final_module.as_bitcode())
    for _, _, result in store.recorded[1:]:
        linked.link_in(llvm.parse_bitcode(result.library._final_module.as_bitcode()))
    linked.verify()
    object_code = codegen._tm.emit_object(linked)
    for function in linked.functions:
        # As Numba does for a library that others link: what they do not use is dropped, what they have twice is one.
        if not function.is_declaration and function.linkage == llvm.Linkage.external:
            function.linkage = "linkonce_odr"
    kernels = [(name, stamp, reduced(result)) for name, stamp, result in store.recorded]
    Bundle.write(folder, level, object_code, linked.as_bitcode(), kernels)
