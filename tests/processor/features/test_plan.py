"""What a plan makes of its manifest; how it binds is in test_binding.py, how it fills in kernels/test_pool.py."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np

from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.pool import OFFSET
from tests.support.packages import manifest

OPTIONAL = ("entity_records", "evaluation", "growth_meter", "sequences", "stage_rows", "stage_runs")
PLAIN = """
import sys
from freshet_serving.processor.engine import Processor
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.package import Manifest
SparsePlan(Manifest.from_json(sys.stdin.buffer.read()))
print(*sys.modules)
"""


def test_plain_package_loads_no_module_of_what_it_has_not():
    plain, alone = replace(manifest(), executables=[]).to_json(), {**os.environ, "FRESHET_EXTENSIONS": "none"}
    child = subprocess.run([sys.executable, "-c", PLAIN], input=plain, stdout=-1, check=True, env=alone)
    loaded = child.stdout.decode().split()
    assert "freshet_serving.processor.features.binding" in loaded
    assert [name for name in OPTIONAL if f"freshet_serving.processor.features.{name}" in loaded] == []


def test_features_are_in_order_only_as_they_lie_in_the_matrix():
    plan, names = SparsePlan(made := manifest()), [f.name for f in made.features]
    assert plan.in_order(names)
    assert not plan.in_order(names[:-1])
    assert not plan.in_order([*names[1:], names[0]])


def test_features_alone_lie_side_by_side():
    plan, names = SparsePlan(made := manifest()), [f.name for f in made.features][::-1]
    widths = [f.width for f in made.features][::-1]
    pooling = plan.pooling(names)
    assert pooling.plan[:, OFFSET].tolist() == np.cumsum([0, *widths[:-1]]).tolist()
