import re

import freshet_serving
from generators.python_page import page


def test_every_name_is_on_the_page():
    told = set(re.findall(r"^(?:### |\| `)(\w+)", page(), re.MULTILINE))
    assert set(freshet_serving.__all__) <= told
