"""What a trainer's tables become in a package, and its network in a lower precision; the rest of publication is
test_loop.py's and test_parity.py's."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="publishing needs the train extra")

from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.models.training.publication import MOST_COUNTED, _packed
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.machine import this_machine
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.running.opening import executable_files
from tests.models.training.streams import MixedSource, make_config
from tests.support.packages import manifest, open_version, rows_of

pytestmark = pytest.mark.tensorflow


def test_overflowing_counts_are_saturated_in_the_table_file():
    keys, none = np.arange(4, dtype=np.int64), np.empty(0, np.int64)
    tables = {"user": (keys, rows_of(keys, 0)), "tag": (none, rows_of(none, 0))}
    met = np.array([0, MOST_COUNTED, MOST_COUNTED + 1, 2**40], np.int64)
    packed = dict(_packed(manifest(), tables, {"user": met}))
    assert packed["user"]["frequencies"].tolist() == [0, MOST_COUNTED, MOST_COUNTED, MOST_COUNTED]
    assert "frequencies" not in packed["tag"]


def test_row_beyond_the_range_of_its_type_names_the_table_and_the_remedy():
    draft = manifest()
    draft = replace(draft, tables=[replace(table, dtype="float16") for table in draft.tables])
    keys = np.arange(4, dtype=np.int64)
    with pytest.raises(BadInput, match=r"table 'user': rows: .* float16; choose another tables.user.dtype"):
        dict(_packed(draft, {"user": (keys, rows_of(keys, 0) + 7e4)}, {}))


@pytest.mark.skipif(not this_machine().int8, reason="this processor does not multiply int8")
@pytest.mark.parametrize(
    ("max_error", "precisions"), [(0.05, {"int8", "float32"}), pytest.param(0.0, {"float32"}, marks=pytest.mark.long)]
)
def test_int8_version_falls_back_to_float32_with_the_reason(max_error, precisions, tmp_path, monkeypatch):
    monkeypatch.setattr("freshet_serving.compiler.building.calibrate.LEAST_ROUNDS", 1)
    monkeypatch.setattr("freshet_serving.compiler.building.calibrate.BUCKET_S", 0.0)
    config = make_config(tmp_path)
    publish = replace(config.publish, precision="int8", max_error=max_error, max_auc_change=1.0)
    notes = []

    class Told:
        def begin(self, what, total): ...
        def advance(self, done): ...
        def note(self, text):
            notes.append(text)

    config = replace(config, model=replace(config.model, options={"hidden": (64, 32)}), publish=publish)
    run = TrainingRun(config, MixedSource(584), reporter=Told())
    run.run()

    package = Repository(tmp_path).version("mixed")
    whole = [e for e in package.manifest.executables if e.subgraph == "whole"]
    assert {e.precision for e in whole} == precisions
    assert any("int8: scores change by" in note for note in notes) == ("int8" not in precisions)
    assert package.manifest.notes["compile"]["precision"] == "int8"
    there = {p.relative_to(package.folder).as_posix() for p in (package.folder / "compiled").rglob("*") if p.is_file()}
    assert there == executable_files(package.manifest)
    if "int8" in precisions:
        assert {(e.max_error, bool(e.rows)) for e in whole if e.precision == "int8"} == {(0.05, True)}
        assert set(open_version(package.folder).replicas.computes.values()) == {"onnxruntime int8"}
