from generators.admin_page import PAGE, page


def test_admin_port_page_is_current():
    assert PAGE.read_text() == page(), "make docs-reference"
