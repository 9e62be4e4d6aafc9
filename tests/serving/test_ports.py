"""Extensions of the server are those of its folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import freshet_serving.serving
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.ports import ENGINE, Extensions
from freshet_serving.serving.ports import SERVER, ServerExtension


def test_every_folder_is_an_extension():
    folder = Path(freshet_serving.serving.__file__).parent / "extensions"
    assert set(SERVER.all()) == {path.parent.name for path in folder.glob("*/__init__.py")}
    assert all(isinstance(one, ServerExtension) for one in SERVER.all().values())


def test_part_that_only_one_can_offer_is_found_or_none(without_extensions):
    assert callable(SERVER.only("importer"))
    without_extensions("auto_import")
    assert SERVER.only("importer") is None


def test_server_loads_no_training_library_and_no_extension_that_is_left_out():
    """No training library for any extension either: all are found once none is left out."""
    code = (
        "import os, sys, freshet_serving.serving.server\n"
        "from freshet_serving.serving.commands.cli import app\n"
        "import typer.main; typer.main.get_command(app)\n"
        "print([name for name in sys.modules if '.extensions.' in name])\n"
        "from freshet_serving.serving.ports import ENGINE, SERVER\n"
        "del os.environ['FRESHET_EXTENSIONS']; ENGINE._known = SERVER._known = None\n"
        "assert [opened() for opened in SERVER.offers('dialects').values()]\n"
        "import freshet_serving.serving.http.app, freshet_serving.serving.extensions.admin.api\n"
        "print([name for name in ('tensorflow', 'keras', 'pandas', 'pyarrow') if name in sys.modules])"
    )
    environ = {**os.environ, "FRESHET_EXTENSIONS": "none"}
    result = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n[]\n"


def test_explaining_needs_the_admin_port(monkeypatch):
    monkeypatch.setenv("FRESHET_EXTENSIONS", "explaining")
    with pytest.raises(BadInput, match="extension 'explaining' needs the extension 'admin': FRESHET_EXTENSIONS="):
        Extensions("freshet_serving.serving.extensions", ENGINE).all()


def test_part_that_two_offer_is_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("sand", "stone"):
        (tmp_path / "importing_toys" / name).mkdir(parents=True)
        text = "from freshet_serving.serving.ports import ServerExtension\nREQUIRES = ()\n"
        text += "EXTENSION = ServerExtension(importer=print)\n"
        (tmp_path / "importing_toys" / name / "__init__.py").write_text(text)
    (tmp_path / "importing_toys" / "__init__.py").touch()
    with pytest.raises(BadInput, match="extensions 'sand' and 'stone' both offer importer: remove one"):
        Extensions("importing_toys").all()
    for name in ("", ".sand", ".stone"):
        del sys.modules[f"importing_toys{name}"]
