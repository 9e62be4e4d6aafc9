"""python -m processor.kernels: compiles every kernel into the cache, so that no first start has to.

Clears the cache first: Numba notices when a kernel's own file changes, not when one that it has inlined does.
"""

from pathlib import Path

for stale in Path(__file__).parent.glob("__pycache__/*.nb[ic]"):
    stale.unlink()
