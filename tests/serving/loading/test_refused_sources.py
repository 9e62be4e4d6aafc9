"""Without the extension that imports them, plain models are refused by its name, once each."""

import pytest

from freshet_serving.processor.versions.routes import END
from freshet_serving.serving.loading.refused_sources import LOOK_EVERY_S, RefusedSources


class Bench:
    """Refused sources with a clock of their own."""

    def __init__(self, root, models=()):
        self.now_s, self.told = 0.0, {}
        self.sources = RefusedSources(root, models, self, lambda: self.now_s)

    def tell(self, model, status):
        assert status.state == END
        self.told[model, status.version] = status.error

    def poll(self):
        self.now_s += LOOK_EVERY_S
        return self.sources.poll()


@pytest.fixture
def root(tmp_path):
    for model, file in (("tf", "saved_model.pb"), ("graph", "model.onnx")):
        (tmp_path / model / "1").mkdir(parents=True)
        (tmp_path / model / "1" / file).touch()
    return tmp_path


def test_source_is_refused_once_by_the_name_of_the_extension(root):
    bench = Bench(root)
    lines = bench.poll()
    assert [line.partition(": ")[0] for line in lines] == ["graph version 1 refused", "tf version 1 refused"]
    assert all("needs the extension 'auto_import': " in line for line in lines)
    assert bench.told["tf", 1].startswith("importing a SavedModel needs the extension 'auto_import': ")
    assert bench.told["graph", 1].startswith("importing 'model.onnx' needs the extension 'auto_import': ")
    assert bench.poll() == []
    (root / "tf" / "2").mkdir()
    (root / "tf" / "2" / "saved_model.pb").touch()
    assert len(bench.poll()) == 1


def test_readiness_waits_for_no_source(root):
    assert Bench(root).sources.announce() == []


def test_other_models_and_repositories_that_are_gone_are_left_alone(root, tmp_path):
    assert len(Bench(root, models=("tf",)).poll()) == 1
    assert Bench(tmp_path / "gone").poll() == []


def test_sources_are_looked_for_now_and_then(root):
    bench = Bench(root)
    assert bench.sources.poll()
    (root / "tf" / "2").mkdir()
    (root / "tf" / "2" / "saved_model.pb").touch()
    assert bench.sources.poll() == []
