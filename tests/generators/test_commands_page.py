from generators.commands_page import PAGE, page


def test_commands_page_is_current():
    assert PAGE.read_text() == page(), "make docs-reference"
