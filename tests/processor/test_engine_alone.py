"""A core without extensions serves a plain package, a delta and a rollback, and loads no extension."""

import os
import subprocess
import sys

from freshet_serving.processor.package.delta import write_delta
from tests.support.packages import make_delta, write_package

SERVE = """
import sys
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from tests.support.packages import make_inputs

root, delta = sys.argv[1:]
with Processor.initialize(ProcessorConfig(root, sessions=1)) as processor:
    for change in (lambda: None, lambda: processor.apply_delta("small", open(delta, "rb").read()),
                   lambda: processor.rollback("small")):
        change()
        reply = processor.process(PredictRequest("small", make_inputs([0, 1])))
        print(reply.generation, len(reply.outputs["score"]))
optional = ("entity_records", "evaluation", "growth_meter", "sequences", "stage_rows", "stage_runs")
print([name for name in optional if f"freshet_serving.processor.features.{name}" in sys.modules])
import freshet_serving.serving.serve_config
print([name for name in sys.modules if ".extensions." in name or name in ("cryptography", "redis")])
"""


def test_predict_delta_and_rollback_need_no_extension_and_no_keys(tmp_path):
    write_package(tmp_path / "repository", users=range(20))
    write_delta(tmp_path / "delta", make_delta(1, [1]))
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path / "repository"), str(tmp_path / "delta")],
        env={**os.environ, "FRESHET_EXTENSIONS": "none"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == ["1.0 2", "1.1 2", "1.0 2", "[]", "[]"], done.stderr[-2000:]
