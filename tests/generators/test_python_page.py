import re

import freshet_serving
from generators.python_page import PAGE, page


def test_python_imports_page_is_current():
    assert PAGE.read_text() == page(), "make docs-reference"


def test_every_name_is_on_the_page():
    told = set(re.findall(r"^(?:### |\| `)(\w+)", PAGE.read_text(), re.MULTILINE))
    assert set(freshet_serving.__all__) <= told
