"""The `freshet` command is made of its functions once in a process that runs tests: most runs take less than that."""

import sys

CLI, PORTS = "freshet_serving.serving.commands.cli", "freshet_serving.serving.ports"


def share_commands():
    """Let runs of the command share it from now on; does nothing before the first test that imports it."""
    if CLI not in sys.modules:
        return
    import typer.main
    import typer.testing

    app, make = sys.modules[CLI].app, typer.main.get_command
    if getattr(make, "shares", None) is app:
        return
    # Subcommands of extensions are a part of it.
    command, offered = make(app), sys.modules[PORTS].SERVER.all()

    def get_command(program):
        shared = program is app and sys.modules[PORTS].SERVER.all() is offered
        return command if shared else make(program)

    get_command.shares = app
    typer.main.get_command = typer.testing._get_command = get_command
