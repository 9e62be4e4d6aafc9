"""Implement `freshet serve`; its options are generated from the fields of ServeConfig."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from inspect import Parameter, Signature
from typing import Annotated, Any, ClassVar

import typer
from rich.markup import escape

from freshet_serving.processor.clock import process_start_s
from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.extras import DISTRIBUTION
from freshet_serving.processor.generation import OFF
from freshet_serving.processor.options import default_of
from freshet_serving.processor.repository import open_repository
from freshet_serving.serving.commands.folded_help import FoldedHelp, HelpAllOption
from freshet_serving.serving.serve_config import KINDS, OPTIONS, load_config, parsed, split_names
from freshet_serving.serving.shutdown_watchdog import ShutdownWatchdog
from freshet_serving.serving.telemetry.logs import enable_faulthandler, log_to_stderr

END_S = 10.0
"""Seconds that a graceful shutdown may take in addition to draining and answering."""

ConfigOption = Annotated[str | None, typer.Option(help="TOML file with any of these options as keys.")]


def _help(text: str, default: str, facts: str = "") -> str:
    """Return the help of an option for typer: its text, the values that it accepts, and its default."""
    return escape(" ".join(filter(None, (f"{text}.", facts, default and f"[{default}]"))))


class ServeCommand(FoldedHelp):
    """Command line of `freshet serve`; --help shows the common options, and of their help what stands before a ";"."""

    folded: ClassVar = frozenset(field.name for field, option in OPTIONS if option.folded)
    short: ClassVar = {
        field.name: _help(option.help.partition(";")[0], str(default_of(field) or "")) for field, option in OPTIONS
    }


def serve(config: str | None, help_all: bool = False, **options: Any) -> None:
    """Serves a model repository until SIGTERM.

    Every option is also an environment variable, FRESHET_HTTP_PORT, and a key of the --config file, http_port.
    """
    lists = {
        key: parsed(split_names, options[key], key)
        for key, kind in KINDS.items()
        if kind is list and options[key] is not None
    }
    settings = load_config({**options, **lists}, os.environ, config)
    log_to_stderr(settings.log_level, settings.log_format)
    enable_faulthandler()
    from freshet_serving.serving.process_layout import Layout, may_have_workers
    from freshet_serving.serving.server import Server

    watchdog = ShutdownWatchdog(settings.drain_s + settings.shutdown_timeout_s + END_S)
    fork_server = None
    with contextlib.ExitStack() as stack:
        if may_have_workers(settings):
            from freshet_serving.serving.workers.fork_server import ForkServer

            fork_server = stack.enter_context(contextlib.closing(ForkServer()))
            # First, since clients of object stores start threads, and so does the sample.
            fork_server.branch()
        if settings.sample:
            from freshet_serving.serving.sample.replay import SampleReplay

            replay = stack.enter_context(SampleReplay())
            # A hold would be a record of its own in a chain that is recorded already.
            settings = replace(settings, repository=str(replay.repository), delta_guard=OFF)
            replay.start(settings.http_port)
        # Fail fast on unknown model names: a server would wait for ever for a mistyped one.
        with contextlib.suppress(NotReady):
            open_repository(settings.repository, settings.mirror, serving=True).check_models(settings.models)
        layout = Layout.here(settings)
        if layout.workers == 1 and fork_server is not None:
            fork_server.close()
        code = Server(
            settings,
            version=package_version(),
            layout=layout,
            fork_server=fork_server,
            shutdown_watchdog=watchdog,
            start_s=process_start_s(),
        ).run()
    watchdog.ended()
    raise typer.Exit(code)


def package_version() -> str:
    """Return the installed version of Freshet, or "0" if it runs from a bare checkout."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "0"


def _signature() -> Signature:
    """Return the signature from which typer builds the command line.

    Every option defaults to None: it may be set in the environment or the file.
    """
    parameters = []
    for field, option in OPTIONS:
        default, kind = default_of(field), str if KINDS[field.name] is list else KINDS[field.name]
        shown = typer.Option(help=_help(option.help, default, option.facts), rich_help_panel=option.heading)
        parameters.append(
            Parameter(field.name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, shown])
        )
    parameters.append(Parameter("config", Parameter.KEYWORD_ONLY, default=None, annotation=ConfigOption))
    parameters.append(Parameter("help_all", Parameter.KEYWORD_ONLY, default=False, annotation=HelpAllOption))
    return Signature(parameters)


# Python reads this attribute of any callable, but typeshed does not declare it.
serve.__signature__ = _signature()  # type: ignore[attr-defined]
serve.command_class = ServeCommand  # type: ignore[attr-defined]
