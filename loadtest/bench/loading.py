"""`python -m loadtest.bench.loading FOLDER`: how long the executables of a version take from disk, without TensorFlow.

A process of its own, so that libraries are imported as a server's first load imports them. Prints JSON: seconds of
opening every bucket (imports of the backends' libraries included) and of preparing the first state (weights put in, one
run each), and which backends served.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main() -> None:
    for absent in ("tensorflow", "keras", "jax"):
        sys.modules[absent] = None  # type: ignore[assignment]
    from freshet_serving.processor.clock import SystemClock
    from freshet_serving.processor.repository.version import VersionReader
    from freshet_serving.processor.versions.replica import Replica
    from freshet_serving.processor.versions.served_version import ServedVersion

    version = ServedVersion(VersionReader(Path(sys.argv[1])), 0, SystemClock())
    started_s = time.perf_counter()
    replica = Replica(version.files, version.control, 0, 1, SystemClock())
    opened_s = time.perf_counter()
    version.attach_replicas(replica)
    ready_s = time.perf_counter()
    print(
        json.dumps(
            {
                "open_s": opened_s - started_s,
                "prepare_s": ready_s - opened_s,
                "backends": sorted({e.backend for e in replica.chosen.values()}),
            }
        )
    )


if __name__ == "__main__":
    main()
