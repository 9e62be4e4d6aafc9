import pytest


@pytest.fixture(scope="session")
def _stand_ins(tmp_path_factory):
    pytest.importorskip("tensorflow", reason="training needs the train extra")
    from tests.models.training.trainers import CompiledOnce, Trainers

    return Trainers(), CompiledOnce(tmp_path_factory.mktemp("compiled"))


@pytest.fixture
def quick(_stand_ins, monkeypatch):
    """Runs that trace and compile each model once: trainers renewed, what holds no weights copied."""
    trainers, compiled = _stand_ins
    monkeypatch.setattr("freshet_serving.models.training.loop.Trainer", trainers)
    monkeypatch.setattr("freshet_serving.compiler.building.packaging.parts", compiled.parts)
    monkeypatch.setattr("freshet_serving.compiler.building.packaging.compile_graph", compiled.compile_graph)
    monkeypatch.setattr(
        "freshet_serving.compiler.dense.dense_graph.DenseGraph.save", lambda graph, path: compiled.save(graph, path)
    )
