import sys

import pytest

from freshet_serving.serving.commands.cli import main


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("trian", "'trian': no command of freshet (did you mean 'train'?)"),
        ("quux", "'quux': no command of freshet; freshet --help lists them"),
        ("delta lst m", "'lst': no command of freshet delta (did you mean 'list'?)"),
        ("serve --repositry r", "--repositry: no option of freshet serve (did you mean '--repository'?)"),
        ("evaluate --quux 1", "--quux: no option of freshet evaluate; freshet evaluate --help lists them"),
        ("serve --http-port abc", "--http-port: expected an integer, got 'abc'"),
        ("delta list m --repository r --version 1.5", "--version: expected an integer, got '1.5'"),
        ("evaluate --skip -1", "--skip: expected 0 or more, got '-1'"),
        ("train", "--config: expected by freshet train, got nothing; see freshet train --help"),
        ("delta apply", "model: expected by freshet delta apply, got nothing; see freshet delta apply --help"),
        ("train --config", "--config: Option '--config' requires an argument"),
        ("explain a b", "got unexpected extra argument"),
    ],
)
def test_command_line_mistake_gives_one_line_and_code_2(line, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["freshet", *line.split()])
    monkeypatch.delenv("FRESHET_REPOSITORY", raising=False)
    with pytest.raises(SystemExit) as end:
        main()
    printed = capsys.readouterr()
    assert (end.value.code, printed.out) == (2, "")
    assert printed.err.startswith(f"freshet: {told}")
    assert printed.err.count("\n") == 1


def test_command_without_its_subcommand_prints_its_help(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["freshet", "delta"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "rollback" in capsys.readouterr().out
