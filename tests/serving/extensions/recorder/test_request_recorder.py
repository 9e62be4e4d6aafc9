"""Recorded requests: what is written, what is dropped, and that it can be asked again."""

import threading
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="recording needs pyarrow")
import pyarrow.parquet as pq  # noqa: E402

from freshet_serving.models.data.formats import DataConfig  # noqa: E402
from freshet_serving.models.data.source import Field  # noqa: E402
from freshet_serving.models.data.tabular import open_table  # noqa: E402
from freshet_serving.processor.columns import Ragged, Strings, nbytes_of  # noqa: E402
from freshet_serving.processor.engine import PredictReply, PredictRequest, Processor, ProcessorConfig  # noqa: E402
from freshet_serving.processor.errors import BadInput  # noqa: E402
from freshet_serving.processor.generation import Generation  # noqa: E402
from freshet_serving.processor.package.manifest_entries import Feature, Input, StageEntry  # noqa: E402
from freshet_serving.processor.repository.warmup import dump_warmup  # noqa: E402
from freshet_serving.serving.codecs import kserve  # noqa: E402
from freshet_serving.serving.extensions.recorder import request_recorder as recording  # noqa: E402
from freshet_serving.serving.extensions.recorder.recorded_columns import RecordedColumns, recorded  # noqa: E402
from freshet_serving.serving.extensions.recorder.recorded_request import find_recorded  # noqa: E402
from freshet_serving.serving.extensions.recorder.request_recorder import RequestRecorder, read_requests  # noqa: E402
from loadtest.load.replay import recorded_payload  # noqa: E402
from tests.support import entities  # noqa: E402
from tests.support.counters import counted  # noqa: E402
from tests.support.packages import make_inputs, manifest, write_package  # noqa: E402
from tests.support.waiting import until  # noqa: E402

USERS = range(20)


@pytest.fixture
def processor(tmp_path):
    write_package(tmp_path / "repository", users=USERS)
    with Processor.initialize(ProcessorConfig(repository=str(tmp_path / "repository"), sessions=1)) as processor:
        yield processor


@pytest.fixture
def recorder(tmp_path, processor):
    """Records everything; closed at the end if the test has not done it."""
    made = RequestRecorder(str(tmp_path / "recordings"), 1.0, 1 << 30, "w0")
    processor.predictor.observers.add(made)
    yield made
    made.close()


def request(n, **more):
    return PredictRequest("small", make_inputs([n, n + 1], seed=n), **more)


def finish(processor, recorder):
    """Everything that was asked is on disk: a request is offered after it was answered."""
    processor.close()
    recorder.close()


def files(tmp_path):
    return sorted((tmp_path / "recordings").iterdir())


def plain(inputs):
    return {
        name: (c.values.tolist(), c.row_splits.tolist()) if isinstance(c, Ragged) else c.tolist()
        for name, c in inputs.items()
    }


def test_each_candidate_is_one_row_with_its_scores(tmp_path, processor, recorder):
    reply = processor.process(request(1, request_id="abc"))
    processor.process(request(2))
    finish(processor, recorder)
    (path,) = files(tmp_path)
    rows = pq.read_table(path).to_pylist()
    assert [(r["freshet.request"], r["freshet.row"], r["user"]) for r in rows] == [
        ("abc", 0, 1), ("abc", 1, 2), ("w0-2", 0, 2), ("w0-2", 1, 3),
    ]  # fmt: skip
    assert rows[0]["freshet.generation"] == "1.0"
    assert [r["freshet.output.score"] for r in rows[:2]] == reply.outputs["score"][:, 0].tolist()
    assert [r["tags"] for r in rows[:2]] == [[], [b"a"]]
    assert counted(recorder) == {"requests": 2, "rows": 4, "dropped": 0}


def test_user_columns_are_stored_once_and_read_as_one_row(tmp_path, processor, recorder):
    inputs = make_inputs([3, 4, 5])
    inputs["floats"] = inputs["floats"][:1]
    inputs["tags"] = Ragged(Strings.of(["x", "y"]), np.array([0, 2]))
    processor.process(PredictRequest("small", inputs))
    processor.process(request(1))
    finish(processor, recorder)
    (path,) = files(tmp_path)
    table = pq.read_table(path)
    assert table["f2"].to_pylist()[:3] == [float(inputs["floats"][0, 2]), None, None]
    assert table["tags"].to_pylist() == [[b"x", b"y"], None, None, [], [b"a"]]
    assert table["user"].to_pylist() == [3, 4, 5, 1, 2]
    found = read_requests(str(tmp_path / "recordings"), "small", manifest().inputs, 10)
    assert list(map(plain, found)) == [plain(inputs), plain(make_inputs([1, 2], seed=1))]
    body, _ = recorded_payload(tmp_path / "recordings").bodies
    assert len(body) < 1000


def test_long_list_shared_by_many_rows_is_stored_once(tmp_path, processor, recorder):
    """It was repeated for every row, with the GIL held: 1.4 kB over the network made 5 GB."""
    inputs = make_inputs([n % 20 for n in range(2000)])
    inputs["tags"] = Ragged(Strings.of([f"tag-{n}" for n in range(2000)]), np.array([0, 2000]))
    processor.process(PredictRequest("small", inputs, request_id="long"))
    finish(processor, recorder)
    assert counted(recorder)["requests"] == 1
    table = pq.read_table(files(tmp_path)[0])
    assert table["tags"].null_count == 1999
    assert table.nbytes < 1 << 20
    found = find_recorded(str(tmp_path / "recordings"), "small", "long")
    assert plain(found.inputs) == plain(inputs)


def test_request_larger_than_the_queue_is_dropped_and_counted(tmp_path, processor, recorder, monkeypatch):
    inputs = make_inputs([n % 20 for n in range(1000)])
    inputs["floats"] = inputs["floats"][:1]
    # Its rows take more than its inputs: a cell in every column, and its id.
    monkeypatch.setattr(recording, "MAX_QUEUED_NBYTES", nbytes_of(inputs) + 100_000)
    processor.process(PredictRequest("small", inputs, request_id="r" * 128))
    processor.process(request(1))
    finish(processor, recorder)
    assert counted(recorder) == {"requests": 1, "rows": 2, "dropped": 1}


def test_request_longer_than_allowed_is_dropped_and_counted(tmp_path, processor, recorder, monkeypatch):
    inputs = make_inputs([1, 2])
    inputs["tags"] = Ragged(Strings.of(["a" * 10_000]), np.array([0, 1]))
    monkeypatch.setattr(recording, "MAX_REQUEST_NBYTES", 10_000)
    processor.process(PredictRequest("small", inputs))
    processor.process(request(1))
    finish(processor, recorder)
    assert counted(recorder) == {"requests": 1, "rows": 2, "dropped": 1}


def test_request_is_freed_before_its_row_group_is_written(tmp_path, processor, monkeypatch):
    class Bulk(dict):
        """Inputs that can be referred to weakly."""

    monkeypatch.setattr(recording, "GROUP_NBYTES", 1)
    alive, write = [], pq.ParquetWriter.write_table

    def written(writer, table, **options):
        alive.append(gone() is not None)
        write(writer, table, **options)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", written)
    recorder = RequestRecorder(str(tmp_path / "recordings"), 1.0, 1 << 30, "w0")
    held = threading.Event()
    monkeypatch.setattr(recorder, "_write", lambda write=recorder._write: held.wait(30) and write())
    processor.predictor.observers.add(recorder)
    inputs = Bulk(make_inputs([1, 2]))
    gone = weakref.ref(inputs)
    processor.process(PredictRequest("small", inputs))
    del inputs
    # A version keeps the newest request as an example.
    processor.process(request(1))
    # The session's frames hold what they have just answered.
    processor.close()
    held.set()
    recorder.close()
    assert alive == [False, False]


def test_row_group_is_limited_by_bytes_and_has_whole_requests(tmp_path, processor, recorder, monkeypatch):
    monkeypatch.setattr(recording, "GROUP_NBYTES", 1)
    for n in range(3):
        processor.process(request(n))
    finish(processor, recorder)
    metadata = pq.ParquetFile(files(tmp_path)[0]).metadata
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [2, 2, 2]


def test_requests_are_reassembled_as_sent(tmp_path, processor, recorder, monkeypatch):
    monkeypatch.setattr(recording, "GROUP_ROWS", 3)
    sent = [make_inputs(list(range(n, n + 1 + n % 4)), seed=n) for n in range(20)]
    processor.batch_process([PredictRequest("small", inputs) for inputs in sent])
    finish(processor, recorder)
    found = read_requests(str(tmp_path / "recordings"), "small", manifest().inputs, 1000)
    key = lambda r: (len(r["user"]), r["user"])  # noqa: E731
    assert sorted(map(plain, found), key=key) == sorted(map(plain, sent), key=key)
    dump_warmup(found)
    assert len(read_requests(str(tmp_path / "recordings"), "small", manifest().inputs, 7)) == 7
    with pytest.raises(BadInput, match="expected requests of model 'other' with its inputs"):
        read_requests(str(tmp_path / "recordings"), "other", manifest().inputs, 7)


def test_inputs_that_are_not_features_are_recorded_too(tmp_path):
    """As in imported models: a stage reads some inputs, a block of floats others, and one feature an output of it."""
    stage = StageEntry("runtime", "stage.pb", [Input("ids", "int64")])
    made = replace(
        manifest(),
        inputs=[Input("user", "int64"), Input("raw", "float32", 3), Input("word", "string"), Input("x", "float32", 2),
                Input("seen", "int64", ragged=True)],
        features=[Feature("u", "id", "user", table="user", width=4), Feature("i", "id", "ids", table="tag", width=4),
                  Feature("block", "floats", "x", column=0, width=2)],
        stage=stage,
    )  # fmt: skip
    names = [c.name for c in recorded(made)]
    assert names == ["u", *(f"freshet.input.raw.{n}" for n in range(3)), "freshet.input.word",
                     "freshet.input.x.0", "freshet.input.x.1", "freshet.input.seen"]  # fmt: skip
    sent = {
        "user": np.array([1, 2]), "raw": np.float32([[1, 2, 3], [4, 5, 6]]), "word": Strings.of(["a", "b"]),
        "x": np.float32([[0.5, 1], [1.5, 2]]), "seen": Ragged(np.array([7, 8, 9]), np.array([0, 1, 3])),
    }  # fmt: skip
    recorder = RequestRecorder(str(tmp_path / "recordings"), 1.0, 1 << 30, "w0")
    done = recorder(
        PredictRequest("small", sent), SimpleNamespace(manifest=made), SimpleNamespace(rows=2, used=None), print
    )
    done(PredictReply({"score": np.float32([[0.25], [0.75]])}, Generation(1, 0), "small"))
    recorder.close()
    (found,) = read_requests(str(tmp_path / "recordings"), "small", made.inputs, 10)
    assert plain(found) == plain(sent)
    assert len(recorded_payload(tmp_path / "recordings").bodies) == 1


def test_training_data_reader_reads_the_recording(tmp_path, processor, recorder):
    processor.batch_process([request(n) for n in range(5)])
    finish(processor, recorder)
    features = [Field("user", "id"), Field("tags", "strings"), Field("f0", "float")]
    data = DataConfig(str(tmp_path / "recordings"), "parquet", "freshet.output.score", "freshet.time")
    source = open_table(data, features)
    (batch,) = source.batches(100)
    assert len(batch) == 10
    assert sorted(batch.columns["user"].tolist()) == sorted([*range(5), *range(1, 6)])


def test_recording_is_a_payload_for_the_load_generators(tmp_path, processor, recorder):
    sent = [make_inputs(list(range(n, n + 1 + n % 3)), seed=n) for n in range(6)]
    for inputs in sent:
        processor.process(PredictRequest("small", inputs))
    finish(processor, recorder)
    payload = recorded_payload(tmp_path / "recordings")
    assert payload.path == "/v2/models/small/infer"
    headers = {name.lower().encode(): value.encode() for name, value in payload.headers.items()}
    for body, inputs in zip(payload.bodies, sent):
        decoded, _ = kserve.decode(body, headers, manifest())
        assert plain({name: decoded[name] for name in inputs}) == plain(inputs)
    assert len(recorded_payload(tmp_path / "recordings", 2).bodies) == 2


def test_sampling_is_evenly_spaced(tmp_path, processor):
    recorder = RequestRecorder(str(tmp_path / "recordings"), 0.25, 1 << 30, "w0")
    processor.predictor.observers.add(recorder)
    processor.batch_process([request(n % 20) for n in range(40)])
    finish(processor, recorder)
    assert counted(recorder)["requests"] == 10


def test_full_queue_drops_and_counts_without_waiting(tmp_path, processor, monkeypatch):
    monkeypatch.setattr(recording, "MAX_QUEUED", 3)
    gate = threading.Event()
    write = RequestRecorder._write

    def held(self):
        gate.wait()
        write(self)

    monkeypatch.setattr(RequestRecorder, "_write", held)
    recorder = RequestRecorder(str(tmp_path / "recordings"), 1.0, 1 << 30, "w0")
    processor.predictor.observers.add(recorder)
    processor.batch_process([request(n) for n in range(10)])
    gate.set()
    finish(processor, recorder)
    assert (counted(recorder)["requests"], counted(recorder)["dropped"]) == (3, 7)


def test_files_rotate_and_the_oldest_are_deleted(tmp_path, processor, monkeypatch):
    monkeypatch.setattr(recording, "ROTATE_S", 0.0)
    folder = tmp_path / "recordings"
    folder.mkdir()
    (folder / "small-w1-1-1.parquet").write_bytes(b"another process's")
    recorder = RequestRecorder(str(folder), 1.0, 12_000, "w0")
    processor.predictor.observers.add(recorder)
    for n in range(20):
        processor.process(request(n % 19))
        until(lambda n=n: counted(recorder)["requests"] > n)
    finish(processor, recorder)
    mine = [p for p in files(tmp_path) if "-w0-" in p.name]
    numbers = {int(p.stem.rpartition("-")[2]) for p in mine}
    assert 1 <= len(numbers) < 20
    assert 20 in numbers, "the newest one stays"
    assert 1 not in numbers
    assert sum(p.stat().st_size for p in mine) <= 12_000
    assert (folder / "small-w1-1-1.parquet").exists()
    assert not list(folder.glob(".*"))


def test_unwritable_disk_loses_records_but_no_requests(tmp_path, processor, recorder, monkeypatch, caplog):

    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(recording.pq, "ParquetWriter", refuse)
        processor.process(request(1))
        until(lambda: caplog.text)
    assert "could not record requests" in caplog.text
    processor.process(request(2))
    finish(processor, recorder)
    assert counted(recorder)["requests"] == 1


def test_temporary_files_of_a_crash_are_removed(tmp_path):
    folder = tmp_path / "recordings"
    folder.mkdir()
    (folder / ".small-w0-1-1.tmp").write_bytes(b"cut")
    (folder / ".small-w1-1-1.tmp").write_bytes(b"another's")
    RequestRecorder(str(folder), 1.0, 1 << 30, "w0").close()
    assert [p.name for p in files(tmp_path)] == [".small-w1-1-1.tmp"]
    with pytest.raises(BadInput, match="record: cannot write to the folder"):
        RequestRecorder(str(folder / ".small-w1-1-1.tmp"), 1.0, 1 << 30, "w0")


def test_written_requests_free_queue_space(tmp_path, processor, recorder, monkeypatch):
    one = RecordedColumns(manifest()).held_nbytes(make_inputs([1, 2]), 2, 64)
    monkeypatch.setattr(recording, "MAX_QUEUED_NBYTES", 2 * one)
    for n in range(20):
        processor.process(PredictRequest("small", make_inputs([1, 2], seed=n)))
        until(lambda n=n: counted(recorder)["requests"] > n)
    finish(processor, recorder)
    assert counted(recorder) == {"requests": 20, "rows": 40, "dropped": 0}


def entity_recorder(tmp_path, text_nbytes):
    entity = replace(entities.ENTITY, text_nbytes=text_nbytes)
    entities.write_package(tmp_path / "repository", entity=entity)
    processor = Processor.initialize(ProcessorConfig(repository=str(tmp_path / "repository"), sessions=1))
    recorder = RequestRecorder(str(tmp_path / "recordings"), 1.0, 1 << 30, "w0")
    processor.predictor.observers.add(recorder)
    return processor, recorder


def test_inputs_left_out_are_recorded_as_they_were_used(tmp_path):
    processor, recorder = entity_recorder(tmp_path, 64)
    with processor:
        processor.process(PredictRequest("small", {"user": np.array([3, 999])}, request_id="left"))
        processor.process(PredictRequest("small", make_inputs([1, 2]), request_id="sent"))
        finish(processor, recorder)
    table = pq.read_table(files(tmp_path)[0]).to_pylist()
    tags = [[t.encode() for t in entities.columns([3])["tags"][0][:3]], []]
    assert [row["tags"] for row in table] == [*tags, [], [b"a"]]
    floats = [[row[f"f{n}"] for n in range(4)] for row in table[:2]]
    np.testing.assert_array_equal(floats, [entities.columns([3])["floats"][0], [np.nan] * 4])
    found = find_recorded(str(tmp_path / "recordings"), "small", "left")
    assert found.inputs.keys() == {"user", "tags", "floats"}


def test_request_whose_records_are_too_many_is_dropped(tmp_path, monkeypatch):
    processor, recorder = entity_recorder(tmp_path, 64)
    monkeypatch.setattr(recording, "MAX_REQUEST_NBYTES", 20_000)
    with processor:
        processor.process(PredictRequest("small", {"user": np.zeros(500, np.int64)}))
        processor.process(PredictRequest("small", {"user": np.zeros(2, np.int64)}))
        finish(processor, recorder)
    assert counted(recorder) == {"requests": 1, "rows": 2, "dropped": 1}
    assert recorder._queued_nbytes == 0


def test_records_are_accounted_for_until_the_reply(tmp_path):
    """A request that fails gives back what was reserved for its records."""
    processor, recorder = entity_recorder(tmp_path, 64)
    with processor:
        replica = processor.predictor.replica("small")
        bound = replica.plan.bind_inputs({"user": np.zeros(5, np.int64)})
        done = recorder(PredictRequest("small", {}), replica, bound, lambda result: None)
        assert recorder._queued_nbytes == recording.USED_COPIES * bound.used.nbytes > 0
        done(BadInput("no"))
        assert recorder._queued_nbytes == 0
        finish(processor, recorder)


def test_inputs_that_records_do_not_hold_are_no_columns(tmp_path):
    processor, recorder = entity_recorder(tmp_path, -1)
    with processor:
        processor.process(PredictRequest("small", {"user": np.array([3, 4])}, request_id="left"))
        finish(processor, recorder)
    (table,) = [pq.read_table(path) for path in files(tmp_path)]
    assert table["user"].to_pylist() == [3, 4]
    assert "tags" not in table.column_names


def test_requests_whose_strings_are_not_kept_are_dropped_alone(tmp_path):
    """A record has 16 bytes for texts: 4 for the number of tags, and 4 for each tag beside its letters."""
    processor, recorder = entity_recorder(tmp_path, 16)
    texts = {user: 4 + sum(4 + len(tag) for tag in entities.columns([user])["tags"][0][:3]) for user in entities.KNOWN}
    with processor:
        for user in texts:
            processor.process(PredictRequest("small", {"user": np.array([user])}))
        finish(processor, recorder)
    rows = [row for path in files(tmp_path) for row in pq.read_table(path).to_pylist()]
    assert [row["user"] for row in rows] == [user for user, nbytes in texts.items() if nbytes <= 16]
    assert counted(recorder)["dropped"] == sum(nbytes > 16 for nbytes in texts.values()) > 0
