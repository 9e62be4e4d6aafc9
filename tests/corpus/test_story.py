"""New entries are written beside the frozen ones; what is frozen, or would not tell anything, is refused."""

import numpy as np
import pytest

pytest.importorskip("onnx", reason="packages for tests are made with the train extra")

from freshet_serving.models.publishing.publisher import Publisher
from tests.corpus.entry import ENTRY, column_document, digests, entries, read_entry
from tests.corpus.scoring import scored
from tests.corpus.story import MODEL, Story, requests_of
from tests.support.packages import write_package

INPUTS = {
    "user": column_document("int64", [1, 2, 99], [3]),
    "tags": column_document("string", ["a", "zz", "b", "東京"], [4], [0, 1, 4, 4]),
    "floats": column_document("float32", [0.5, float("nan"), -1.0, 2.0] * 3, [3, 4]),
}


@pytest.fixture
def begin(tmp_path):
    """Begins the story of a small package."""

    def make(name="small"):
        story = Story(tmp_path / "frozen", name, "a small package", "0" * 40)
        write_package(story.repository, model=MODEL)
        story.requests += requests_of("rows", INPUTS)
        story.moment("published")
        return story

    return make


def publish(story, value):
    Publisher(story.repository, MODEL).publish(rows={"user": ([1], np.full((1, 4), value, np.float32))})


def tell(story):
    with story:
        publish(story, 0.5)
        story.moment("delta 1")
        story.roll_back(0, "a mistake")
        story.moment("rolled back")
        story.end()
    return read_entry(story.folder)


def test_entry_stores_its_scores(begin, tmp_path):
    entry = tell(begin())

    assert [one.folder for one in entries(tmp_path / "frozen")] == [entry.folder]
    assert [moment.generation for moment in entry.moments] == ["1.0", "1.1", "1.0"]
    assert entry.moments[1].arrived == ["clicks/1/deltas/1.safetensors", "clicks/1/chain/0000000001.json"]
    stored = entry.scores()
    for one in scored(entry, tmp_path / "aside"):
        np.testing.assert_array_equal(one.scores["score"], stored[f"{one.moment.name}/rows"]["score"])
    assert not np.array_equal(stored["delta 1/rows"]["score"], stored["published/rows"]["score"])
    assert digests(entry.folder) == entry.files


def test_existing_entry_is_never_overwritten(begin):
    entry = tell(begin())
    before = (entry.folder / ENTRY).read_bytes()

    with pytest.raises(FileExistsError, match="in the corpus already"):
        begin()

    assert (entry.folder / ENTRY).read_bytes() == before
    assert digests(entry.folder) == entry.files


def test_rewritten_file_is_refused(begin):
    with begin() as story:
        (story.repository / MODEL / "1" / "dense.safetensors").write_bytes(b"another")

        with pytest.raises(ValueError, match="was changed after it was written"):
            story.moment("changed")


def test_delta_without_score_changes_is_refused(begin):
    with begin() as story:
        Publisher(story.repository, MODEL).publish(rows={"user": ([7], np.ones((1, 4), np.float32))})
        story.moment("delta 1")

        with pytest.raises(ValueError, match="expected other scores for another generation"):
            story.end()

    assert not story.folder.exists()


def test_generation_different_from_the_stored_one_is_an_error(begin, tmp_path):
    entry = tell(begin())
    path = entry.folder / ENTRY
    path.write_text(path.read_text().replace('"generation": "1.1"', '"generation": "1.7"'))

    with pytest.raises(AssertionError, match=r"generation: expected 1\.7, got 1\.1"):
        list(scored(read_entry(entry.folder), tmp_path / "aside"))
