"""python -m processor.kernels: compiles every kernel into the cache, so that no first start has to.

Clears the cache first: Numba notices when a kernel's own file changes, not when one that it has inlined does.
"""

from pathlib import Path

for stale in Path(__file__).parent.glob("__pycache__/*.nb[ic]"):
    stale.unlink()

import processor.kernels.covers  # noqa: E402
import processor.kernels.fences  # noqa: E402
import processor.kernels.hashing  # noqa: E402
import processor.kernels.index  # noqa: E402
import processor.kernels.pool  # noqa: E402
import processor.kernels.remote  # noqa: E402
import processor.kernels.rows  # noqa: E402
import processor.kernels.rowtypes  # noqa: E402
import processor.kernels.sketch  # noqa: E402
import processor.kernels.tiers  # noqa: E402, F401
