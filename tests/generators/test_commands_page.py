from generators.commands_page import page


def test_commands_and_options_are_described():
    text = page()
    assert "## freshet rollback\n\nGoes back to an earlier generation" in text
    assert "| `--from-scratch` |" in text
    assert "| `--repository` | required | Folder of models. Environment variable: `FRESHET_REPOSITORY`. |" in text


def test_options_of_serve_are_on_their_own_page():
    assert "Options: [options.md](options.md)." in page()
    assert "| `--undo-depth` |" not in page()
