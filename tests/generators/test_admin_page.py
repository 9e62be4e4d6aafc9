from generators.admin_page import PAGE, page


def test_the_page_of_the_admin_port_is_current():
    assert PAGE.read_text() == page(), "make docs-reference"
