"""A small part of `make -C loadtest fuzz` with every run of the tests."""

from random import Random

import pytest

from tests.fuzz.__main__ import keep, run
from tests.fuzz.mutate import MAX_NBYTES, mutate
from tests.fuzz.targets import targets

CASES = 300
NAMES = [
    "JSON: predict", "JSON: classify", "JSON: infer", "JSON: filter of items", "binary: infer, plain",
    "binary: infer, strings", "binary: length-prefixed strings", "protobuf: ModelInfer, raw",
    "protobuf: ModelInfer, typed", "protobuf: Predict",
    "protobuf: Input of examples", "protobuf: DeepRec", "file: delta", "file: delta, past its checksum",
    "file: tensors", "file: manifest", "file: record of a chain", "file: list of a snapshot", "HTTP: path",
    "HTTP: head", "HTTP: chunked body", "stream: JSON message", "stream: Arrow message", "stream: entry of Redis",
    "file: journal of a stream", "file: journal of a stream, past its checksums", "join: state",
    "join: lines of windows", "join: joined rows", "join: recording", "online features: value of Feast",
    "online features: text", "online features: timestamp", "online features: registry",
    "online features: group of a package",
]  # fmt: skip


def test_every_parser_is_a_fuzz_target(tmp_path):
    assert [target.name for target in targets(tmp_path)] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_malformed_input_is_decoded_or_refused_with_a_freshet_error(name, tmp_path):
    target = next(t for t in targets(tmp_path) if t.name == name)
    record = run(target, CASES, seed=0)
    assert record["failures"] == []
    assert record["refused"] > 0


def test_mutations_are_reproducible_and_bounded():
    corpus = (b"abc", b"x" * MAX_NBYTES)
    first, second = ([mutate(random, corpus) for _ in range(50)] for random in (Random(3), Random(3)))
    assert first == second
    assert max(map(len, first)) <= MAX_NBYTES


def test_records_of_several_seeds_add_up(tmp_path):
    counts = {"cases": 10, "refused": 4, "slowest_ms": 1.0, "seconds": 1.0, "failures": [], "failed": 0}
    record = {"name": "JSON: predict", "seed": 1, **counts}
    for seed in (1, 2, 2):
        keep(tmp_path, {**record, "seed": seed})
    page = (tmp_path / "fuzz.md").read_text()
    assert "| JSON: predict | 20 | 40% | 0 | 1.0 | 1, 2 |" in page
    assert "20 cases in all, 0 failed." in page
