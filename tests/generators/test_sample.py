"""The request of the sample, and the archive, which is the same whenever it is made."""

import zipfile

from freshet_serving.models.data.synthetic import SyntheticSource
from generators import sample


def test_request_has_one_user_and_distinct_items_with_few_tags():
    batch = next(iter(SyntheticSource(seed=7, users=800, items=300).batches(100)))
    inputs = sample.request(batch)
    assert {name: len(values) for name, values in inputs.items()} == {
        "user_id": 1, "hour": 1, "item_id": 3, "category": 3, "tags": 3, "price": 3,
    }  # fmt: skip
    assert len(set(inputs["item_id"])) == 3
    assert max(map(len, inputs["tags"])) <= 2


def test_archive_depends_on_contents_alone(tmp_path, monkeypatch):
    version = tmp_path / "1"
    (version / "chain").mkdir(parents=True)
    (version / "model.json").write_text("{}")
    (version / "chain" / "0000000001.json").write_text("[]")
    archives = []
    for name in ("a.zip", "b.zip"):
        monkeypatch.setattr(sample, "SAMPLE", tmp_path / name)
        sample.pack(version)
        archives.append((tmp_path / name).read_bytes())
        (version / "model.json").touch()
    assert archives[0] == archives[1]
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.namelist() == ["chain/0000000001.json", "model.json"]
