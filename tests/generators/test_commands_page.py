from generators.commands_page import PAGE, page


def test_the_page_of_the_commands_is_current():
    assert PAGE.read_text() == page(), "make docs-reference"
