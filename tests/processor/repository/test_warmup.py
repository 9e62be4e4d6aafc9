"""Recorded requests in a package: written, read back, refused when they are not what they say."""

import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput, Corrupt, NotFound
from freshet_serving.processor.package.manifest_entries import Input
from freshet_serving.processor.repository import WARMUP, Repository, VersionReader, VersionWriter, add_file
from freshet_serving.processor.repository.warmup import MAX_REQUESTS, carry_warmup, dump_warmup, parse_warmup
from tests.support.packages import make_inputs, manifest, write_package

INPUTS = [
    Input("id", "int64"), Input("floats", "float32", 3), Input("name", "string"), Input("pair", "string", 2),
    Input("seen", "int64", ragged=True), Input("tags", "string", ragged=True),
]  # fmt: skip


def request_of(n):
    return {
        "id": np.array([n, -n]),
        "floats": np.full((2, 3), n, np.float32),
        "name": Strings.of(["a" * n, "ü"]),
        "pair": Strings.of(["a", "b", "", "d"]),
        "seen": Ragged.of([[1] * n, []]),
        "tags": Ragged.of([[], ["x", "y"]]),
    }


def plain(column):
    if isinstance(column, Ragged):
        return plain(column.values), column.row_splits.tolist()
    return column.tolist()


def test_warmup_requests_round_trip():
    requests = [request_of(n) for n in range(3)]
    again = parse_warmup(dump_warmup(requests), INPUTS)
    assert [{k: plain(v) for k, v in r.items()} for r in again] == [
        {k: plain(v) for k, v in r.items()} for r in requests
    ]


def test_slice_of_strings_is_written_without_the_rest():
    whole = Strings.of(["one", "two", "three"])
    part = Strings(whole.data, whole.offsets[1:3])
    (again,) = parse_warmup(dump_warmup([{"name": part}]), [Input("name", "string")])
    assert plain(again["name"]) == [b"two"]


def test_too_many_requests_or_none_are_refused():
    with pytest.raises(BadInput, match="warm-up: expected 1 to 1000 requests, got 0"):
        dump_warmup([])
    with pytest.raises(BadInput, match="got 1001"):
        dump_warmup([{}] * (MAX_REQUESTS + 1))


def test_malformed_warmup_file_is_refused():
    good = dump_warmup([request_of(1)])
    with pytest.raises(Corrupt, match="input 'other' of a request is missing"):
        parse_warmup(good, [*INPUTS, Input("other", "int64")])
    with pytest.raises(Corrupt):
        parse_warmup(good[:-1], INPUTS)
    with pytest.raises(Corrupt, match="'freshet-warmup/1' with"):
        parse_warmup(good.replace(b"freshet-warmup/1", b"freshet-warmup/2"), INPUTS)
    broken = {"name": Strings(np.frombuffer(b"abc", np.uint8), np.array([0, 9, 3]))}
    with pytest.raises(Corrupt, match="expected ascending offsets of strings from 0 to 3"):
        parse_warmup(dump_warmup([broken]), [Input("name", "string")])


def test_file_is_added_to_a_committed_version_and_verified(tmp_path):
    folder = write_package(tmp_path)
    data = dump_warmup([make_inputs([1, 2])])
    add_file(VersionReader(folder), WARMUP, data)
    reader = VersionReader(folder)
    reader.verify()
    assert reader.file(WARMUP) == data
    assert len(parse_warmup(data, manifest().inputs)) == 1
    with pytest.raises(NotFound):
        add_file(VersionReader(tmp_path / "small" / "7"), WARMUP, data)


def test_new_version_reuses_the_warmup_of_an_equal_signature(tmp_path):
    repository = Repository(tmp_path)

    def carried(inputs, version):
        with VersionWriter(tmp_path, "small", version) as writer:
            carry_warmup(repository, "small", inputs, writer)
            return (writer.folder / WARMUP).exists() and (writer.folder / WARMUP).read_bytes()

    inputs = manifest().inputs
    assert carried(inputs, 1) is False
    data = dump_warmup([make_inputs([1, 2])])
    add_file(VersionReader(write_package(tmp_path)), WARMUP, data)
    assert carried(inputs, 2) == data
    assert carried(inputs[1:], 2) is False
    (tmp_path / "small" / "1" / WARMUP).write_bytes(data[:-1])
    assert carried(inputs, 2) is False
    (tmp_path / "small" / "1" / "model.json").write_bytes(b"{")
    assert carried(inputs, 2) is False
