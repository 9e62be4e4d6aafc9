import subprocess
import sys

import pytest

from processor.backends import load_backend
from processor.backends.registry import NAMES
from processor.errors import BadInput


@pytest.mark.parametrize("name", NAMES)
def test_a_backend_is_loaded_by_the_name_it_answers_to(name):
    assert load_backend(name).name == name


def test_an_unknown_backend_is_refused_with_the_known_ones():
    with pytest.raises(BadInput, match="backend: one of onnxruntime wanted, got 'abacus'"):
        load_backend("abacus")


def test_no_backend_library_is_imported_before_it_is_asked_for():
    code = "import sys, processor.backends; sys.exit('onnxruntime' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
