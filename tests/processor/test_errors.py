"""What passes by itself, and what is wrong with a file."""

import errno

import pytest

from freshet_serving.processor.errors import (
    Corrupt,
    NotReady,
    first_of,
    nearest,
    nearest_file,
    option_hint,
    shortage,
    unreadable,
)
from freshet_serving.processor.package import map_file, read_delta_file
from freshet_serving.processor.repository.mapped_file import MappedFile
from freshet_serving.processor.repository.version import VersionReader
from tests.support.descriptors import few_descriptors
from tests.support.packages import write_package


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EIO, errno.ESTALE])
def test_resource_shortage_is_retryable_and_hides_the_path(number):
    error = OSError(number, "why", "/somewhere/secret/user.safetensors")
    short = shortage(error)
    assert isinstance(short, NotReady)
    assert str(short).startswith("user.safetensors: ")
    assert isinstance(unreadable("tables/user", error), NotReady)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.EISDIR, errno.ELOOP])
def test_bad_file_is_not_retryable(number):
    error = OSError(number, "why")
    assert shortage(error) is None
    refused = unreadable("tables/user", error)
    assert isinstance(refused, Corrupt)
    assert str(refused) == "tables/user: cannot be read: why"


def test_memory_shortage_is_retryable_and_an_internal_error_is_not():
    assert isinstance(shortage(MemoryError()), NotReady)
    assert isinstance(shortage(RuntimeError("can't start new thread")), NotReady)
    assert shortage(RuntimeError("no")) is None
    assert shortage(ValueError("no")) is None
    known = NotReady("a library has not enough memory")
    assert shortage(known) is known


def refused(read):
    with few_descriptors():
        try:
            read()
        except NotReady:
            return True
    return False


def test_descriptor_shortage_is_retryable_and_not_reported_as_corruption(tmp_path):
    version = write_package(tmp_path, users=range(3))
    reader = VersionReader(version)
    table = next(name for name in reader.manifest.files if name.startswith("tables/"))
    reads = [
        lambda: VersionReader(version),
        reader.verify,
        lambda: reader.file(table),
        lambda: reader.tensors(table),
        lambda: map_file(version / table),
        lambda: MappedFile.of(version / table, table, "", None),
        lambda: read_delta_file(version / table),
    ]
    for read in reads:
        # A thread of another test may close a file at this moment, so that there is a descriptor after all.
        assert any(refused(read) for _ in range(5))


def test_similar_name_is_suggested_and_a_distant_one_is_not():
    assert nearest("usr", ["item", "user"]) == " (did you mean 'user'?)"
    assert nearest("price", ["item", "user"]) == ""


def test_name_of_a_clients_length_is_not_compared():
    known = "x" * 255
    assert nearest(f"{known}y", [known]) == f" (did you mean {known!r}?)"
    assert nearest(f"{known}yz", [known]) == ""


def test_nearest_file_comes_from_the_same_folder(tmp_path):
    (tmp_path / "clicks.parquet").touch()
    assert nearest_file(tmp_path / "clicks.parqet") == " (did you mean 'clicks.parquet'?)"
    assert nearest_file(str(tmp_path / "other.csv")) == ""
    assert nearest_file(tmp_path / "nowhere" / "clicks.parquet") == ""


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("import_processor_s", " (ended: twice import_timeout_s)"),
        ("--max-bodies-bytes", " (ended: twice max_body_bytes, at least 128 MiB)"),
        ("sesions", " (did you mean 'sessions'?)"),
        ("qqq", ""),
    ],
)
def test_former_option_names_what_holds_now_and_others_the_nearest(name, hint):
    assert option_hint(name, ["sessions", "workers"]) == hint


def test_former_flag_of_one_command_says_nothing_of_another():
    assert option_hint("--folder", ["--out"], "demo") == " (ended: the demo's is .demo)"
    assert option_hint("--folder", ["--out"], "train") == ""
    assert option_hint("--key", ["--out"], "train") == " (ended: set FRESHET_KEY in the environment)"


def test_first_item_of_any_iterable_is_returned():
    assert [first_of(items) for items in ([3, 4], {"a": 1}, (n for n in range(5, 9)))] == [3, "a", 5]


def test_nothing_to_take_is_no_stop_iteration():
    with pytest.raises(LookupError, match="expected at least one item, got none"):
        first_of(())
