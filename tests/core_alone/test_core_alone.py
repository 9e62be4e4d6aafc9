import pytest

from tests.core_alone import __main__ as core_alone


@pytest.mark.parametrize(
    ("path", "left_out"),
    [
        ("processor/extensions/trials/shadow.py", True),
        ("serving/extensions/trials/__init__.py", True),
        ("serving/extensions/__init__.py", False),
        ("tests/processor/extensions/trials/test_shadow.py", True),
        ("tests/extensions/toy_late/__init__.py", True),
        ("processor/engine.py", False),
        ("tests/processor/test_engine.py", False),
    ],
)
def test_copy_leaves_out_extensions_and_their_tests(path, left_out):
    assert core_alone.left_out(path) == left_out


def test_copy_holds_the_files_of_the_tree(tmp_path, monkeypatch):
    root = tmp_path / "tree"
    for path in (
        "processor/engine.py",
        "processor/extensions/trials/shadow.py",
        "processor/kernels/compiled/a.kernels",
    ):
        (root / path).parent.mkdir(parents=True)
        (root / path).touch()
    (root / "link").symlink_to("processor")
    listed = "\0".join(["processor/engine.py", "processor/extensions/trials/shadow.py", "link", "gone.py", ""])
    monkeypatch.setattr(core_alone, "ROOT", root)
    monkeypatch.setattr(
        core_alone.subprocess, "run", lambda *_, **__: core_alone.subprocess.CompletedProcess([], 0, listed)
    )

    copy = core_alone.copied(tmp_path / "copy")

    files = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if not path.is_dir() or path.is_symlink()}
    assert files == {"processor/engine.py", "processor/kernels/compiled/a.kernels", "link"}
