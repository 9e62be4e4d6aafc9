"""Extensions are found by their folders; what is missing, or offered twice, is refused by name."""

import os
import subprocess
import sys

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.ports import ONLY, Extensions, missing
from tests.support.extensions import needs

OFFER = "from freshet_serving.processor.ports import Extension\n"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Writes extensions of a package of their own; returns what finds them."""
    folder = tmp_path / "toys"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, requires=(), offers=""):
        (folder / name).mkdir()
        text = f"{OFFER}REQUIRES = {requires!r}\nEXTENSION = Extension({offers})\n"
        (folder / name / "__init__.py").write_text(text)
        return Extensions("toys")

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "toys"]:
        del sys.modules[name]


def test_new_folder_is_an_extension(install):
    toys = install("sand", offers="storages={'sand': print}")
    assert toys.all().keys() == {"sand"}
    assert toys.get("storages", "sand") is print
    assert toys.get("storages", "s3") is None


def test_package_that_is_not_there_has_no_extensions():
    assert not Extensions("freshet_serving.nowhere").all()


def test_extension_without_one_that_it_needs_is_refused(install):
    toys = install("castle", requires=("sand",))
    with pytest.raises(BadInput, match="extension 'castle' needs the extension 'sand': this installation does not"):
        toys.all()


def test_extension_may_need_one_of_its_name_in_the_package_below(install):
    below = install("sand")
    install("castle", requires=("sand",))
    assert Extensions("toys", below).all().keys() == {"castle", "sand"}
    install("tower", requires=("tower",))
    with pytest.raises(BadInput, match="extension 'tower' needs the extension 'tower': "):
        Extensions("toys", below).all()


def test_name_that_two_offer_is_refused(install):
    install("sand", offers="storages={'s': print}")
    toys = install("stone", offers="storages={'s': print}")
    with pytest.raises(BadInput, match="extensions 'sand' and 'stone' both offer 's' of storages: remove one"):
        toys.all()


@pytest.mark.parametrize(
    ("only", "used"),
    [
        ("none", set()),
        ("sand", {"sand"}),
        ("sand,", {"sand"}),
        pytest.param("sand, stone,admin", {"sand", "stone"}, marks=needs("admin")),
    ],
)
def test_environment_names_the_only_extensions(install, monkeypatch, only, used):
    install("sand")
    toys = install("stone")
    monkeypatch.setenv(ONLY, only)
    assert toys.all().keys() == used
    assert (
        str(missing("a thing", "mud")) == f"a thing needs the extension 'mud': FRESHET_EXTENSIONS={only} leaves it out"
    )


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ("sandd", r"expected names of extensions, got 'sandd' \(did you mean 'sand'\?\)"),
        pytest.param(
            "sand,recorderr",
            r"expected names of extensions, got 'recorderr' \(did you mean 'recorder'\?\)",
            marks=needs("recorder"),
        ),
        (" , ", "expected names of extensions, or none, got ' , '"),
    ],
)
def test_misspelt_name_is_refused_with_the_nearest(install, monkeypatch, only, message):
    toys = install("sand")
    monkeypatch.setenv(ONLY, only)
    with pytest.raises(BadInput, match=f"^{ONLY}: {message}"):
        toys.all()


@needs("admin", "top_items")
def test_names_are_known_without_importing_the_server():
    code = "import sys; from freshet_serving.processor.ports import ENGINE; print(*ENGINE.all(), *sys.modules)"
    environ = {**os.environ, ONLY: "admin,top_items"}
    result = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    words = result.stdout.split()
    assert words[0] == "top_items"
    assert not [name for name in words if name.startswith("freshet_serving.serving")]
