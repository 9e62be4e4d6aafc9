"""What earlier code wrote is read and scores as it did: every entry of the frozen corpus, at every moment of it."""

import numpy as np
import pytest

from freshet_serving.processor.machine import Machine
from freshet_serving.processor.package import Manifest
from tests.corpus.entry import FROZEN, digests, entries, read_entry
from tests.corpus.scoring import lacking, scored

MOST_NBYTES = 5_000_000
ENTRIES = entries()
LOWER_PRECISION = 1e-3
BARE = Machine(frozenset({"x86_64"}), "a processor that has nothing")


def marked(entry):
    """Entries that take TensorFlow are scored in the long part."""
    marks = [pytest.mark.long, pytest.mark.tensorflow] if "tensorflow" in entry.needs else []
    return pytest.param(entry, marks=marks, id=entry.name)


def check(entry, aside):
    """Asserts that an entry scores as it did; returns what computed the scores."""
    if missing := lacking(entry):
        pytest.skip(f"needs {', '.join(missing)}")
    stored, seen, computes = entry.scores(), set(), set()
    for one in scored(entry, aside):
        key = f"{one.moment.name}/{one.request.name}"
        assert one.scores.keys() == stored[key].keys()
        for name, array in one.scores.items():
            where = f"{key}, {one.how}: output {name!r}"
            np.testing.assert_allclose(array, stored[key][name], rtol=0, atol=entry.tolerance, err_msg=where)
        seen.add((key, one.how))
        computes.add(one.computes)
    assert len(seen) == 2 * len(stored) == 2 * len(entry.moments) * len(entry.requests())
    return computes


@pytest.mark.parametrize("entry", [marked(entry) for entry in ENTRIES])
def test_stored_scores_are_reproduced_at_every_moment(entry, tmp_path):
    computes = check(entry, tmp_path)

    # A lower precision may be lacking here; nothing else may stand in for what the entry stores.
    assert computes == {entry.computes} or entry.tolerance == LOWER_PRECISION


@pytest.mark.parametrize("name", ["int8", "bfloat16", "xla"])
def test_stored_scores_are_reproduced_without_processor_extensions(name, tmp_path, monkeypatch):
    monkeypatch.setattr("freshet_serving.processor.running.opening.this_machine", lambda: BARE)

    computes = check(read_entry(FROZEN / name), tmp_path)

    assert [one.split()[1] for one in computes] == ["float32"]


def test_output_that_follows_the_rank_is_read_as_such():
    manifest = Manifest.from_json((FROZEN / "import-flat/store/clicks/1/model.json").read_bytes())

    assert {output.name: output.flat for output in manifest.outputs} == {"each": True, "total": False}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_entry_files_are_unchanged(entry):
    assert digests(entry.folder) == entry.files


def test_corpus_stays_small():
    assert sum(path.stat().st_size for path in FROZEN.rglob("*") if path.is_file()) < MOST_NBYTES
