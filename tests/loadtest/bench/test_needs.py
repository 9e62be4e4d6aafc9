import sys
from pathlib import Path

import pytest

from loadtest.bench import needs


@pytest.mark.parametrize(
    ("ask", "word"),
    [
        (lambda folder: needs.movielens(folder), "ml-1m"),
        (lambda folder: needs.program("no-such-program"), "no-such-program"),
        (lambda folder: needs.interpreter(folder / "python", "install it"), "install it"),
    ],
)
def test_missing_thing_is_said_in_one_line_with_exit_code_2(ask, word, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        ask(tmp_path)
    assert ended.value.code == 2
    line = capsys.readouterr().err
    assert word in line
    assert line.count("\n") == 1


def test_what_is_there_is_not_refused(tmp_path):
    (tmp_path / "ml-1m").mkdir()
    assert needs.movielens(tmp_path) == tmp_path / "ml-1m"
    needs.program("sh")
    needs.interpreter(Path(sys.executable), "")
