"""Repositories by their address: a folder, or what a storage opens."""

import pytest

from freshet_serving.processor.errors import BadInput, NotFound
from freshet_serving.processor.ports import ENGINE, Extension, Storage
from freshet_serving.processor.repository import Repository, address_parts, is_address, open_repository


def test_folder_is_opened_as_it_is(tmp_path):
    assert type(open_repository(tmp_path)) is Repository
    with pytest.raises(NotFound):
        open_repository(tmp_path / "new")
    assert open_repository(tmp_path / "new", create=True).root.is_dir()


def test_storage_of_the_scheme_opens_the_address(tmp_path, monkeypatch):
    def open_toy(*arguments):
        return arguments, Repository(tmp_path)

    toy = Extension(storages={"toy": Storage(repository=open_toy, objects=None)})
    monkeypatch.setattr(ENGINE, "_known", {"toys": toy})
    arguments, _ = open_repository("toy://box/corner", "mirror", 7, serving=True, models=["clicks"])
    assert arguments == ("toy://box/corner", "mirror", 7, True, ["clicks"])


def test_address_has_a_scheme_a_bucket_and_a_prefix():
    assert address_parts("s3://bucket/a/b/", "repository") == ("s3", "bucket", "a/b")
    assert address_parts("gs://bucket", "repository") == ("gs", "bucket", "")


@pytest.mark.parametrize(
    ("address", "got"),
    [
        ("s3://", "s3:// without a bucket"),
        ("ftp://host/x", "scheme 'ftp'"),
        ("s3://user:password@bucket/x", "s3:// with more than a bucket and a prefix"),
        ("redis://h", "scheme 'redis'"),
        ("s3://b?x=1", "s3:// with more than a bucket and a prefix"),
    ],
)
def test_invalid_address_is_refused_without_its_secrets(address, got):
    assert is_address(address)
    with pytest.raises(BadInput) as caught:
        open_repository(address)
    assert str(caught.value) == (
        f"repository: expected a folder, or s3://BUCKET, gs://BUCKET or az://BUCKET, got {got}"
    )
    assert not is_address("/var/models")
