"""Compile every kernel into Numba's cache, so that no cold start has to: python -m freshet_serving.processor.kernels.

Clears the cache first: Numba notices when a kernel's own file changes, but not when the file of an inlined kernel does.
"""

from importlib import import_module
from pathlib import Path

from rich.progress import track

HERE = Path(__file__).parent

for stale in HERE.glob("__pycache__/*.nb[ic]"):
    stale.unlink()
for module in track(sorted(HERE.glob("[a-z]*.py")), "kernels for this processor"):
    import_module(f"freshet_serving.processor.kernels.{module.stem}")
