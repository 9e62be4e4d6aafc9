import math

import pytest

from freshet_serving.processor.cores import ResourceLimits
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.serving.process_layout import Layout, ModelFootprint
from freshet_serving.serving.serve_config import ServeConfig
from tests.support.extensions import needs
from tests.support.packages import write_package

GIB, NONE = 1 << 30, ModelFootprint()
REMOTE = {"remote_url": "redis://host", "remote_tables": ["ctr/user"]}
GROUPS = {"groups": {"baseline": {"models": ["ctr"], "cpus": "0"}}}


def layout(options, cores=4, quota=None, memory_nbytes=64 * GIB, footprint=NONE, linux=True):
    return Layout.of(ServeConfig("r", **options), ResourceLimits(cores, quota, memory_nbytes), footprint, linux)


@pytest.mark.parametrize(
    ("cores", "quota", "workers", "compute", "why"),
    [
        (1, None, 1, "inline", "1 core: affinity 1, no quota"),
        (2, None, 2, "inline", "2 cores: affinity 2, no quota"),
        (8, None, 8, "inline", "8 cores: affinity 8, no quota"),
        (64, None, 8, "inline", "64 cores: affinity 64, no quota, at most 8 workers"),
        (64, 4.0, 4, "inline", "4 cores: affinity 64, quota 4"),
        (4, 2.9, 2, "inline", "2 cores: affinity 4, quota 2.9"),
        (4, 1.5, 1, "inline", "1 core: affinity 4, quota 1.5"),
        (4, 0.5, 1, "inline", "1 core: affinity 4, quota 0.5"),
    ],
)
def test_default_layout_is_one_inline_worker_per_core(cores, quota, workers, compute, why):
    found = layout({}, cores, quota)
    assert (found.workers, found.compute, found.why) == (workers, compute, why)
    assert found.text == f"compute={compute} ({why})"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (GROUPS, "groups are set"),
        pytest.param(REMOTE, "remote tables are set", marks=needs("remote_rows")),
        pytest.param({"shared_memory": "on"}, "shared_memory is on", marks=needs("shared_memory")),
        ({"sessions": 2}, "sessions is set"),
        ({"device_stages": 1}, "device_stages is set"),
        ({"threads_per_session": 2}, "threads_per_session is set"),
        ({"batch_window_us": 100.0}, "batch_window_us is set"),
    ],
)
def test_options_that_need_one_process_use_one(options, why):
    found = layout(options)
    assert (found.workers, found.compute) == (1, "threads")
    assert found.why == f"one process: {why}"


def test_per_worker_options_do_not_change_the_layout():
    assert layout({"max_queue_rows": 100, "table_memory": ["ctr/*=1G"]}).workers == 4


def test_other_systems_use_one_process():
    assert layout({}, linux=False).why == "one process: workers need Linux"


def test_model_whose_stage_needs_a_library_uses_one_process():
    found = layout({}, footprint=ModelFootprint(staged="ctr"))
    assert (found.workers, found.why) == (1, "one process: ctr has a stage that loads a large library")


@pytest.mark.parametrize(
    ("memory_nbytes", "dense_nbytes", "workers", "why"),
    [
        (None, 0, 4, "4 cores: affinity 4, no quota"),
        (GIB, 0, 4, "4 cores: affinity 4, no quota"),
        (GIB // 2, 0, 2, "512 MiB of memory, 128 for each worker"),
        (GIB // 8, 0, 1, "128 MiB of memory, 128 for each worker"),
        (4 * GIB, GIB, 1, "4096 MiB of memory, 1152 for each worker"),
    ],
)
def test_workers_use_at_most_half_of_the_memory(memory_nbytes, dense_nbytes, workers, why):
    found = layout({}, memory_nbytes=memory_nbytes, footprint=ModelFootprint(dense_nbytes))
    assert (found.workers, found.why) == (workers, why)


@pytest.mark.parametrize(
    ("options", "cores", "workers", "compute", "sessions"),
    [
        ({"workers": 1}, 4, 1, "threads", 0),
        ({"workers": 1}, 1, 1, "inline", 1),
        ({"workers": 4}, 1, 4, "inline", 1),
        ({"workers": 4, "sessions": 2}, 4, 4, "threads", 2),
        ({"workers": 4, "compute": "threads"}, 4, 4, "threads", 1),
        ({"workers": 1, "compute": "inline"}, 4, 1, "inline", 1),
        ({"workers": 1, "compute": "inline", "sessions": 3}, 4, 1, "inline", 3),
        ({"compute": "inline"}, 64, 8, "inline", 8),
        ({"workers": 1, "device_stages": 1}, 1, 1, "threads", 0),
        pytest.param({"workers": 2, **REMOTE}, 4, 2, "threads", 1, marks=needs("remote_rows")),
        ({"workers": 2, **GROUPS}, 4, 2, "threads", 0),
        ({"compute": "threads"}, 4, 4, "threads", 1),
        ({"compute": "inline"}, 4, 4, "inline", 4),
    ],
)
def test_explicit_layout_options_are_used(options, cores, workers, compute, sessions):
    found = layout(options, cores)
    assert (found.workers, found.compute, found.sessions) == (workers, compute, sessions)
    assert ("workers" in options) == (found.why == "as configured")


def test_session_count_follows_the_process_layout():
    config = ServeConfig("r", max_queue_rows=7)
    options = Layout(4, "inline", 2, "").session_options(config)
    assert (options["compute"], options["sessions"], options["max_queue_rows"]) == ("inline", 2, 7)


def test_models_are_weighed_by_their_newest_version(tmp_path):
    write_package(tmp_path)
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "model.json").write_text("{")
    dense = Repository(tmp_path).version("small").manifest.dense
    footprint = ModelFootprint.of(str(tmp_path), [])
    assert footprint.dense_nbytes == 4 * sum(math.prod(shape) for shape in dense.values()) > 0
    assert footprint.staged == ""
    assert (
        ModelFootprint.of(str(tmp_path), ["nope"]) == ModelFootprint.of(str(tmp_path / "nope"), []) == ModelFootprint()
    )
