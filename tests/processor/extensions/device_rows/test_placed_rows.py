"""A version whose rows lie on a device answers as one whose rows lie in memory."""

import io
from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("jaxlib", reason="the xla extra is not installed")

from freshet_serving.processor.counter_block import by_name
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.extensions.device_rows import placed_rows, row_mirror
from freshet_serving.processor.package import TableEntry, stream_delta
from freshet_serving.processor.repository.version import VersionReader
from tests.gpu.package import folder_of
from tests.processor.extensions.device_rows.played import ENTITIES, MODEL, add_entities, delta, repositories, request
from tests.processor.extensions.device_rows.test_slot_layout import MANY, ONE, SUM, pooling
from tests.support.played_gpu import put_xla
from tests.support.waiting import Background

STAGED = {"device_stages": 1, "sessions": 2}
ALONE = {"sessions": 1, "compute": "inline"}
ROOM = {"device_rows_mb": 1}
SOME = 3500
"""Bytes for some of the rows."""


@pytest.fixture
def gpu(monkeypatch):
    for name, value in (("COPIED", (8, 64)), ("LEAST_SPARE", 16), ("TURN", 32)):
        monkeypatch.setattr(row_mirror, name, value)
    return put_xla(monkeypatch)


def encoded(change):
    file = io.BytesIO()
    stream_delta(file, change)
    return file.getvalue()


def room_for(monkeypatch, nbytes):
    open_rows = placed_rows.open_device_rows
    monkeypatch.setattr(placed_rows, "open_device_rows", lambda *known: open_rows(*known[:-1], nbytes))


def counters(processor):
    return by_name(processor.predictor.replica(MODEL).counted(), placed_rows.BLOCK)


@pytest.mark.parametrize(
    ("options", "room"), [(STAGED, SOME), (ALONE, 1 << 20)], ids=["some rows, device stages", "all rows, inline"]
)
def test_deltas_and_rollbacks_answer_as_on_the_host(options, room, gpu, tmp_path, monkeypatch):
    room_for(monkeypatch, room)
    on_device, on_host = repositories(tmp_path)
    random = np.random.default_rng(0)
    with (
        Processor.initialize(ProcessorConfig(str(on_device), delta_guard="off", **options, **ROOM)) as device,
        Processor.initialize(ProcessorConfig(str(on_host), delta_guard="off", **ALONE)) as host,
    ):
        manifest, generation = host.predictor.manifest(MODEL)
        dense = host.host.catalogue[MODEL].pick(None).dense

        def compare():
            for rows, users in ((1, 1), (8, 8), (8, 1), (30, 1)):
                asked = PredictRequest(MODEL, request(random, rows, users))
                got, expected = device.process(asked), host.process(asked)
                assert got.generation == expected.generation
                np.testing.assert_allclose(got.outputs["score"], expected.outputs["score"], atol=1e-6)

        compare()
        first = generation.step
        for step in range(first + 1, first + 11):
            weights = {name: value * np.float32(1.01) for name, value in dense.items()} if step % 4 == 0 else {}
            data = encoded(delta(random, manifest, step, weights))
            for side in (device, host):
                side.apply_delta(MODEL, data=data)
            compare()
        for back in (first + 8, first + 5):
            for side in (device, host):
                side.rollback(MODEL, replace(generation, step=back))
            compare()
        told = counters(device)
    assert told["changed_rows"] > 20
    assert told["nbytes"] > 0
    if room == SOME:
        assert told["host_rows"] > 0


def test_replies_beside_deltas_are_of_the_generation_that_they_name(gpu, tmp_path, monkeypatch):
    """Threads ask while deltas come; what each generation answers is computed on the host afterwards."""
    on_device, on_host = repositories(tmp_path)
    random = np.random.default_rng(1)
    asked = [PredictRequest(MODEL, request(random, rows)) for rows in (2, 8, 20)]
    replies = []
    with Processor.initialize(ProcessorConfig(str(on_device), delta_guard="off", **STAGED, **ROOM)) as device:
        manifest, generation = device.predictor.manifest(MODEL)

        def ask(number):
            while not askers.ended.is_set():
                reply = device.process(asked[number])
                replies.append((number, reply.generation.step, reply.outputs["score"].copy()))

        askers = Background([partial(ask, n) for n in range(3)])
        deltas = [encoded(delta(random, manifest, generation.step + n)) for n in range(1, 9)]
        with askers:
            for data in deltas:
                device.apply_delta(MODEL, data=data)
    expected = {}
    with Processor.initialize(ProcessorConfig(str(on_host), delta_guard="off", **ALONE)) as host:
        for step, data in enumerate([None, *deltas], generation.step):
            if data is not None:
                host.apply_delta(MODEL, data=data)
            for number, one in enumerate(asked):
                expected[number, step] = host.process(one).outputs["score"]
    assert {step for _, step, _ in replies} >= {generation.step}
    for number, step, scores in replies:
        np.testing.assert_allclose(scores, expected[number, step], atol=1e-6)


def test_keys_of_entities_answer_as_on_the_host(gpu, tmp_path, monkeypatch):
    """Records stay on the host, and follow deltas and rollbacks; the rows that their values lead to lie there."""
    room_for(monkeypatch, SOME)
    sides = repositories(tmp_path)
    for repository in sides:
        add_entities(folder_of(repository, MODEL))
    random = np.random.default_rng(2)
    with (
        Processor.initialize(ProcessorConfig(str(sides[0]), delta_guard="off", **STAGED, **ROOM)) as device,
        Processor.initialize(ProcessorConfig(str(sides[1]), delta_guard="off", **ALONE)) as host,
    ):
        manifest, generation = host.predictor.manifest(MODEL)
        scores = []

        def compare():
            for rows, users in ((1, 1), (8, 8), (30, 1)):
                whole = request(random, rows, users)
                for filled in ([], ENTITIES[:1], ENTITIES[1:], ENTITIES):
                    left_out = {name for entity in filled for name in entity.inputs}
                    asked = PredictRequest(MODEL, {n: v for n, v in whole.items() if n not in left_out})
                    got, expected = device.process(asked), host.process(asked)
                    assert got.generation == expected.generation
                    np.testing.assert_allclose(got.outputs["score"], expected.outputs["score"], atol=1e-6)
                    scores.append(got.outputs["score"].ravel()[0])

        compare()
        for step in range(generation.step + 1, generation.step + 5):
            data = encoded(delta(random, manifest, step))
            for side in (device, host):
                side.apply_delta(MODEL, data=data)
            compare()
        for side in (device, host):
            side.rollback(MODEL, replace(generation, step=generation.step + 2))
        compare()
        assert counters(device)["changed_rows"] > 10
    # What a record fills in is not what the request has sent.
    assert len(set(scores[:4])) == 4


def test_little_is_sent_of_a_row_and_nothing_of_padding(gpu, tmp_path):
    on_device, _ = repositories(tmp_path)
    random = np.random.default_rng(0)
    with Processor.initialize(ProcessorConfig(str(on_device), delta_guard="off", **ALONE, **ROOM)) as device:
        places, floats = 3 + 5 + 3, 2
        for rows in (8, 7):
            before = counters(device)["sent_nbytes"]
            device.process(PredictRequest(MODEL, request(random, rows, rows)))
            told = counters(device)
            assert told["sent_nbytes"] - before == rows * 4 * (places + floats)
    assert told["changed_rows"] == told["host_rows"] == 0


def test_rows_that_the_host_sends_are_counted_as_sent(gpu, tmp_path, monkeypatch):
    room_for(monkeypatch, SOME)
    monkeypatch.setattr(row_mirror, "TURN", 10**6)
    sent, keep, argument = [], gpu.keep, gpu.argument

    def keep_counted(array):
        sent.append(array.nbytes)
        return keep(array)

    def argument_counted(x):
        array, refill = argument(x)

        def refill_counted(rows):
            sent.append(rows * x[0].nbytes)
            return array if refill is None else refill(rows)

        return array, refill_counted

    monkeypatch.setattr(gpu, "keep", keep_counted)
    monkeypatch.setattr(gpu, "argument", argument_counted)
    on_device, _ = repositories(tmp_path)
    asked = PredictRequest(MODEL, request(np.random.default_rng(5), 7, 7))
    with Processor.initialize(ProcessorConfig(str(on_device), delta_guard="off", **ALONE, **ROOM)) as device:
        device.process(asked)
        before = counters(device)
        sent.clear()
        device.process(asked)
        told = counters(device)
    assert told["host_rows"] > before["host_rows"]
    assert told["sent_nbytes"] - before["sent_nbytes"] == sum(sent)


def test_rows_stay_in_memory_where_nothing_runs_on_a_device(gpu, tmp_path):
    _, on_host = repositories(tmp_path)
    with Processor.initialize(ProcessorConfig(str(on_host), **ALONE, **ROOM)) as host:
        assert not counters(host)


def test_rows_stay_in_memory_where_the_device_cannot_take_them(gpu, tmp_path, monkeypatch, caplog):
    def fail(mirror):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory\nand more")

    monkeypatch.setattr(row_mirror.RowMirror, "allocate", fail)
    on_device, _ = repositories(tmp_path)
    with Processor.initialize(ProcessorConfig(str(on_device), **ALONE, **ROOM)) as device:
        device.process(PredictRequest(MODEL, request(np.random.default_rng(0), 3)))
        assert not counters(device)
    assert "clicks version 1: rows stay in memory: RESOURCE_EXHAUSTED: out of memory" in caplog.messages


@pytest.mark.parametrize("room", [0, 100])
def test_rows_stay_in_memory_without_room(room, gpu, tmp_path, monkeypatch):
    room_for(monkeypatch, room)
    on_device, _ = repositories(tmp_path)
    with Processor.initialize(ProcessorConfig(str(on_device), **ALONE, **(ROOM if room else {}))) as device:
        device.process(PredictRequest(MODEL, request(np.random.default_rng(0), 3)))
        assert not counters(device)


def test_tables_that_are_read_most_often_a_byte_come_first():
    tables = [TableEntry("large", 8, 1000), TableEntry("small", 8, 100), TableEntry("unread", 8, 10)]
    given, _ = pooling((ONE, 0, SUM, 0, 8, 1), (ONE, 1, SUM, 0, 8, 1), (MANY, 1, SUM, 4, 8, 1))
    with mock.patch.object(row_mirror, "LEAST_SPARE", 10):
        assert placed_rows.placed_rows(tables, [given], 1 << 20) == [1000, 100, 0]
        # Each row takes 32 bytes, and a part more is spare.
        assert placed_rows.placed_rows(tables, [given], 32 * (100 + 25 + 250 + 300)) == [300, 100, 0]
        assert placed_rows.placed_rows(tables, [given], 32 * 126) == [0, 100, 0]
        assert placed_rows.placed_rows(tables, [given], 0) == [0, 0, 0]


@pytest.mark.parametrize(
    "table",
    [TableEntry("t", 8, 10, "int8", [1.0] * 8), TableEntry("t", 8, 10, "record")],
    ids=["a default row that its type may not have", "records"],
)
def test_tables_of_the_host(table):
    given, _ = pooling((ONE, 0, SUM, 0, 8, 1))
    assert placed_rows.placed_rows([table], [given], 1 << 30) == [0]


def test_inspect_says_what_is_sent_of_a_row(tmp_path):
    on_device, on_host = repositories(tmp_path)
    manifest = VersionReader(folder_of(on_device, MODEL)).manifest
    said = placed_rows.describe(manifest)
    assert said == f"{4 * 13} bytes a row instead of {4 * manifest.width}, with rows of 4 of 4 tables there"
    add_entities(folder_of(on_device, MODEL))
    with_records = placed_rows.describe(VersionReader(folder_of(on_device, MODEL)).manifest)
    assert (
        with_records == f"{said[: said.index(' 4 of 4')]} 4 of 6 tables there; on the host 2 with records of entities"
    )
    coarse = [replace(manifest.tables[0], dtype="int8", default=[1.0] * 8), *manifest.tables[1:]]
    assert placed_rows.describe(replace(manifest, tables=coarse)).endswith(
        "; on the host 1 with a default row that int8 cannot hold"
    )
    assert placed_rows.describe(VersionReader(folder_of(on_host, MODEL)).manifest) == ""
