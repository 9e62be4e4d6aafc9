from generators.options_page import PAGE, page


def test_the_page_of_options_is_current():
    assert PAGE.read_text() == page(), "make docs-reference"
