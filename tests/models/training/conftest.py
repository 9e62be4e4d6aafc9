import os
import sys
from functools import partial

import pytest


@pytest.fixture(autouse=True)
def decoded_here(monkeypatch):
    """Decode the files that a test writes in its own process: one beside it takes half a second to start.

    Nothing is flushed to the disk meanwhile: no power fails here.
    """
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    decoding = sys.modules.get("freshet_serving.models.data.decoding")
    if decoding is not None:
        from freshet_serving.models.data.decoding_child import answer, plain

        monkeypatch.setattr(
            decoding.DecoderPool, "_answer", lambda pool, request: (plain(batch) for batch in answer(request, {}))
        )


@pytest.fixture(autouse=True)
def linger(monkeypatch):
    """Wait a fiftieth of a second where a follower waits up to half of one: for more rows, new files and tables.

    A test that needs full batches calls linger(seconds), longer than rows take to arrive.
    """
    from freshet_serving.models.streams import followed_source, followed_tables, growing_folder, open_rows

    def linger(seconds):
        monkeypatch.setattr(open_rows, "FollowedSource", partial(followed_source.FollowedSource, linger_s=seconds))

    linger(0.02)
    monkeypatch.setattr(followed_source, "POLL_S", 0.02)
    monkeypatch.setattr(growing_folder, "LOOK_S", 0.02)
    for name in ("LOOK_S", "POLL_S", "ReplacedFile.look_s", "RecordStream.look_s"):
        monkeypatch.setattr(f"{followed_tables.__name__}.{name}", 0.02)
    return linger


@pytest.fixture(scope="session")
def _compiled(tmp_path_factory):
    pytest.importorskip("tensorflow", reason="training needs the train extra")
    from tests.models.training.trainers import CompiledOnce

    return CompiledOnce(tmp_path_factory.mktemp("compiled"))


@pytest.fixture
def quick(_compiled, monkeypatch):
    """Publish what holds no weights of a network once, and copies of it after that; compile few sizes of steps."""
    stand_in(_compiled, monkeypatch)


def stand_in(compiled, monkeypatch):
    # One size of executables is compiled, not a smaller one for the last rows; tests of the steps have all sizes.
    monkeypatch.setattr("freshet_serving.models.training.retrieval_step.FEWEST", 128)
    for step in ("dense_step", "next_item_step"):
        monkeypatch.setattr(f"freshet_serving.models.training.{step}.NARROWER", 1 << 30)
    monkeypatch.setattr("freshet_serving.compiler.building.packaging.parts", compiled.parts)
    monkeypatch.setattr("freshet_serving.compiler.building.packaging.compile_graph", compiled.compile_graph)
    monkeypatch.setattr(
        "freshet_serving.compiler.dense.dense_graph.DenseGraph.save", lambda graph, path: compiled.save(graph, path)
    )


@pytest.fixture
def server(monkeypatch):
    """A redis-server for histories, which a run that cannot reach it tries again at once."""
    from freshet_serving.models.runs import outages
    from freshet_serving.models.streams import history_writer
    from tests.processor.extensions.remote_rows.fakes import RedisServer

    monkeypatch.setattr(outages, "FIRST_S", 0.02)
    monkeypatch.setattr(history_writer, "MOST_S", 0.02)
    server = RedisServer(options=["--appendonly", "no"]).start()
    yield server
    server.close()
