from generators.options_page import PAGE, page


def test_options_page_is_current():
    assert PAGE.read_text() == page(), "make docs-reference"
