"""Extensions of the server are those of its folder."""

from pathlib import Path

import freshet_serving.serving
from freshet_serving.serving.ports import SERVER, ServerExtension


def test_every_folder_is_an_extension():
    folder = Path(freshet_serving.serving.__file__).parent / "extensions"
    assert set(SERVER.all()) == {path.parent.name for path in folder.glob("*/__init__.py")}
    assert all(isinstance(one, ServerExtension) for one in SERVER.all().values())
