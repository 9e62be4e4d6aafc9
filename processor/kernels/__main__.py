"""python -m freshet_serving.processor.kernels: compiles every kernel into the cache, so that no first start has to.

Clears the cache first: Numba notices when a kernel's own file changes, not when one that it has inlined does.
"""

from importlib import import_module
from pathlib import Path

from rich.progress import track

HERE = Path(__file__).parent

for stale in HERE.glob("__pycache__/*.nb[ic]"):
    stale.unlink()
for module in track(sorted(HERE.glob("[a-z]*.py")), "kernels for this processor"):
    import_module(f"freshet_serving.processor.kernels.{module.stem}")
