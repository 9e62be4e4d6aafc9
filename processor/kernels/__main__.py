"""python -m processor.kernels: compiles every kernel into the cache, so that no first start has to."""

import processor.kernels.hashing
import processor.kernels.index
import processor.kernels.pool
import processor.kernels.rows  # noqa: F401
