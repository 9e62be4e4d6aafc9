"""The command that builds the C interface."""

from freshet_serving.processor.capi import __main__ as capi
from freshet_serving.processor.ports import ENGINE, Extension


def test_program_of_the_extension_is_run(monkeypatch):
    monkeypatch.setattr(ENGINE, "_known", {"toy": Extension(interface_builder=lambda: 7)})
    assert capi.main() == 7


def test_command_is_refused_by_name_without_the_extension(without_extensions, capsys):
    without_extensions("deeprec")
    assert capi.main() == 1
    assert capsys.readouterr().err.startswith("the C interface needs the extension 'deeprec'")
