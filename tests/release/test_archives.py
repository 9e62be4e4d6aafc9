"""The same bytes from the same files, whoever builds them, whenever and wherever."""

import io
import json
import os
import tarfile
import zipfile

import pytest

from tests.release.archives import build, lay_out, settle
from tests.release.bill import check_bill, named_after
from tests.release.contents import check_source, check_wheel, client_files, package_files
from tests.release.newcomer import ROOT
from tests.release.state import version_of

TOOLS = ROOT / ".venv" / "tools" / "bin" / "python"
EPOCH_S = 1_700_000_000


def packed(path, names, mtime, owner):
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname, member.mode = len(name), mtime, owner, 0o664
            archive.addfile(member, io.BytesIO(name.encode()))
    return path


def test_source_distribution_is_independent_of_packer_and_time(tmp_path):
    first = packed(tmp_path / "a.tar.gz", ["x-1/b", "x-1/a"], 7, "me")
    second = packed(tmp_path / "b.tar.gz", ["x-1/a", "x-1/b"], 1e9, "you")
    settle(first, EPOCH_S)
    settle(second, EPOCH_S)
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as archive:
        assert [(m.name, m.mtime, m.mode, m.uname) for m in archive] == [
            ("x-1/a", EPOCH_S, 0o644, ""),
            ("x-1/b", EPOCH_S, 0o644, ""),
        ]


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """Of this tree, built twice: in other folders, with another umask, at other times."""
    if not TOOLS.exists():
        pytest.skip("what builds is not here: make .venv/.tools")
    made = []
    for umask in (0o022, 0o077):
        work, before = tmp_path_factory.mktemp("release"), os.umask(umask)
        try:
            lay_out(ROOT, work / "tree", EPOCH_S)
            made.append(build(work / "tree", work / "out", EPOCH_S, str(TOOLS)))
        finally:
            os.umask(before)
    return made


@pytest.mark.long
def test_two_builds_give_identical_bytes(archives):
    first, second = ({path.name: path.read_bytes() for path in paths} for paths in archives)
    assert len(first) == 3
    assert first == second


@pytest.mark.long
def test_archives_contain_the_expected_files(archives):
    version, files = version_of(ROOT), package_files(ROOT)
    for path in archives[0]:
        if path.suffix != ".whl":
            assert check_source(path, files, version) == []
        else:
            wanted = client_files(ROOT) if path.name.startswith("freshet_client") else files
            assert check_wheel(path, wanted, version) == []


@pytest.mark.long
def test_faulty_wheel_contents_are_reported_by_name(archives, tmp_path):
    (wheel,) = (path for path in archives[0] if path.name.startswith("freshet_client"))
    other = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(other, "w") as target:
        for name in source.namelist():
            if not name.endswith(("py.typed", "/licenses/LICENSE")):
                target.writestr(name, source.read(name))
        target.writestr("tests/test_x.py", "")
    told = "\n".join(check_wheel(other, client_files(ROOT), "9.9.9"))
    for wanted in (
        "freshet_serving/py.typed wanted, which is tracked",
        "tests/test_x.py is not to be in it",
        "a licence wanted",
    ):
        assert wanted in told
    assert "version 9.9.9 wanted" in told


def test_incomplete_or_path_revealing_bill_of_materials_is_refused(tmp_path):
    bill = tmp_path / "x.cdx.json"
    own = {"name": "x", "externalReferences": [{"type": "distribution", "url": "file:///tmp/x-1-py3-none-any.whl"}]}
    needs = [{"name": "NumPy", "version": "2"}, {"name": "typer"}]
    said = {"metadata": {}, "components": [own, *needs]}
    bill.write_text(json.dumps({**said, "metadata": {"component": own}}))
    assert "x.cdx.json: no file of this machine wanted" in check_bill(bill, "x", {"numpy"})
    bill.write_text(json.dumps(named_after(said, "x-1-py3-none-any.whl")))
    assert check_bill(bill, "x", {"numpy", "orjson"}) == [
        "x.cdx.json: orjson wanted",
        "x.cdx.json: a version of typer wanted",
    ]
