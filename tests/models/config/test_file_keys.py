from typer.testing import CliRunner

from freshet_serving.models.config.file_keys import file_sections, keys_as_text, plain
from freshet_serving.serving.commands.cli import app


def test_sections_come_before_those_inside_them():
    titles = [section.title for section in file_sections()]
    assert titles.index("publish") < titles.index("publish.gate")
    assert titles[:3] == ["model", "data", "features.COLUMN"]


def test_text_names_each_key_with_type_and_default():
    text = keys_as_text()
    for section in file_sections():
        assert f"[{section.title}]" in text
        for key in section.keys:
            assert f"  {key.name} ({key.type}" in text
    assert "  path (string; required)\n" in text
    assert "](" not in text


def test_plain_text_has_no_links_or_code_marks():
    assert plain("see [the `zoo`](architectures.md#options), then `x`") == "see the zoo, then x"


def test_help_keys_needs_no_file():
    shown = CliRunner().invoke(app, ["train", "--help-keys"])
    assert shown.exit_code == 0
    assert shown.stdout.startswith("[model]")
