"""Repositories by their address."""

from freshet_serving.processor.repository.mirror.repositories import mirror_folder, open_repository
from freshet_serving.processor.repository.model_repository import Repository


def test_folder_is_opened_without_a_mirror(tmp_path):
    assert type(open_repository(tmp_path)) is Repository


def test_each_address_has_its_own_mirror(tmp_path, monkeypatch):
    one, two = (mirror_folder(f"s3://models/{name}", str(tmp_path)) for name in ("prod", "test"))
    assert one.parent == two.parent == tmp_path
    assert one != two
    assert one == mirror_folder("s3://models/prod/", str(tmp_path))
    monkeypatch.setenv("FRESHET_MIRROR", str(tmp_path / "else"))
    assert mirror_folder("s3://models/prod").parent == tmp_path / "else"
