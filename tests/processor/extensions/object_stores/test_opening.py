"""Repositories in object stores by their address, and their refusal where the extension is left out."""

import pytest

from freshet_serving.models.config.publish_section import read_publish
from freshet_serving.models.data.object_files import stored_files
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.object_stores.mirrored_repository import MirroredRepository
from freshet_serving.processor.extensions.object_stores.opening import mirror_folder
from freshet_serving.processor.repository.opening import open_repository

MISSING = r"s3:// needs the extension 'object_stores': FRESHET_EXTENSIONS=\S+ leaves it out"


def test_each_address_has_its_own_mirror(tmp_path, monkeypatch):
    one, two = (mirror_folder(f"s3://models/{name}", str(tmp_path)) for name in ("prod", "test"))
    assert one.parent == two.parent == tmp_path
    assert one != two
    assert one == mirror_folder("s3://models/prod/", str(tmp_path))
    monkeypatch.setenv("FRESHET_MIRROR", str(tmp_path / "else"))
    assert mirror_folder("s3://models/prod").parent == tmp_path / "else"


def test_address_is_opened_with_a_mirror_below_its_folder(tmp_path, monkeypatch):
    pytest.importorskip("obstore", reason="needs the objects extra")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    repository = open_repository("s3://models/prod", str(tmp_path), mirror_bytes=1 << 20, models=["clicks"])
    assert isinstance(repository, MirroredRepository)
    assert repository.root.parent == tmp_path
    assert repository.mirror.max_nbytes == 1 << 20


@pytest.mark.parametrize(
    ("field", "open_address"),
    [
        ("repository", open_repository),
        ("publish.repository", lambda address: read_publish({"repository": address})),
        ("data.path", stored_files),
    ],
)
def test_address_is_refused_by_name_without_the_extension(without_extensions, field, open_address):
    without_extensions("object_stores")
    with pytest.raises(BadInput, match=f"^{field} {MISSING}$"):
        open_address("s3://models/prod")


def test_folder_needs_no_extension_for_a_mirror_that_it_does_not_use(without_extensions, tmp_path):
    without_extensions("object_stores")
    assert open_repository(tmp_path, str(tmp_path / "mirror"), mirror_bytes=1).root == tmp_path
