from freshet_serving.serving.serve_config import OPTIONS
from generators.options_page import page


def test_every_option_has_a_row():
    text = page()
    for field, option in OPTIONS:
        assert f"| `{field.name}` |" in text
        assert option.help.split(";")[0].replace("|", "\\|").replace("<", "&lt;") in text
