"""The `freshet` command. Each command imports what it needs when it runs, so that --help and serve stay
light.

A command that belongs to another floor registers itself here: define it with @app.command() (or add a Typer
with app.add_typer) and import models or compiler inside the function.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from processor.errors import FreshetError
from serving.commands.compiling import compile_command
from serving.commands.demo import demo
from serving.commands.importing import draw, import_command
from serving.commands.recordings import recordings_app
from serving.commands.remote_tables import tables_app
from serving.commands.training import bench_app, train
from serving.telemetry.logs import log_to_stderr

app = typer.Typer(
    name="freshet",
    help="Online inference serving for recommendation models whose embeddings change every minute.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
delta_app = typer.Typer(help="List, apply and roll back deltas.", no_args_is_help=True)
app.command()(train)
app.add_typer(delta_app, name="delta")
app.add_typer(bench_app, name="bench")
app.add_typer(tables_app, name="tables")
app.add_typer(recordings_app, name="recordings")
app.command()(demo)
app.command("import")(import_command)
app.command("compile")(compile_command)

AdminOption = Annotated[str, typer.Option("--admin", envvar="FRESHET_ADMIN", help="The server's admin port.")]
TokenOption = Annotated[
    str,
    typer.Option("--admin-token", envvar="FRESHET_ADMIN_TOKEN", help="Bearer token; better set in the environment."),
]
DEFAULT_ADMIN = "http://127.0.0.1:8502"


def main() -> None:
    """Entry point: an error of ours becomes one line on stderr and exit code 2."""
    try:
        app()
    except FreshetError as error:
        print(f"freshet: {error}", file=sys.stderr)
        sys.exit(2)


def package_version() -> str:
    """The installed version of Freshet, or "0" when it runs from a bare checkout."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("freshet")
    except PackageNotFoundError:
        return "0"


@app.command()
def serve(
    repository: Annotated[str | None, typer.Option(help="Folder of models: <repository>/<model>/<version>/.")] = None,
    host: Annotated[str | None, typer.Option(help="Address of the data port. [127.0.0.1]")] = None,
    http_port: Annotated[int | None, typer.Option(help="Data port; 0 takes a free one. [8501]")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="gRPC port; 0 takes a free one. [8500]")] = None,
    admin_host: Annotated[
        str | None, typer.Option(help="Address of the admin port; loopback unless a token is set.")
    ] = None,
    admin_port: Annotated[int | None, typer.Option(help="Admin port; 0 takes a free one. [8502]")] = None,
    admin_token: Annotated[
        str | None, typer.Option(help="Bearer token of the admin port; better set as FRESHET_ADMIN_TOKEN.")
    ] = None,
    sessions: Annotated[
        int | None, typer.Option(help="Sessions a process; 0 is one per core, with several workers one each. [0]")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that answer; 0 is one per core. [1]")] = None,
    compute: Annotated[
        str | None, typer.Option(help="inline (in the event loop), threads (one a session) or auto. [auto]")
    ] = None,
    threads_per_session: Annotated[
        int | None, typer.Option(help="Threads that one run of an executable may use. [1]")
    ] = None,
    device_stages: Annotated[
        int | None,
        typer.Option(help="Threads that run what sessions have filled, in large batches; for GPUs. 0: none. [0]"),
    ] = None,
    session_cpus: Annotated[
        str | None, typer.Option(help='Cores of each session in turn, such as "0-1;2-3". [any]')
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Which session gets a request: shared, round-robin, mod, least-loaded. [shared]")
    ] = None,
    batch_window_us: Annotated[
        float | None, typer.Option(help="Microseconds that a batch may wait to grow; 0: an idle session takes all. [0]")
    ] = None,
    default_timeout_ms: Annotated[
        float | None, typer.Option(help="Deadline of requests that bring none, in milliseconds; 0 is none. [0]")
    ] = None,
    models: Annotated[str | None, typer.Option(help="Serve only these, separated by commas. [all]")] = None,
    max_body_bytes: Annotated[
        int | None, typer.Option(help="Largest request body, also when inflated. [67108864]")
    ] = None,
    drain_s: Annotated[
        float | None, typer.Option(help="Seconds of service after SIGTERM while already unready. [0]")
    ] = None,
    shutdown_timeout_s: Annotated[
        float | None, typer.Option(help="Seconds that requests in flight get to finish. [30]")
    ] = None,
    poll_interval_s: Annotated[
        float | None, typer.Option(help="Seconds between looks at the repository. [0.05]")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error. [info]")] = None,
    log_format: Annotated[str | None, typer.Option(help="text, or json: one object a line. [text]")] = None,
    access_log_share: Annotated[
        float | None, typer.Option(help="Share of the requests to log, one line each. [0]")
    ] = None,
    trace_endpoint: Annotated[
        str | None, typer.Option(help="OpenTelemetry collector, by OTLP over HTTP: http://host:4318. [none]")
    ] = None,
    trace_share: Annotated[
        float | None, typer.Option(help="Share of the requests to trace that bring no traceparent. [0.01]")
    ] = None,
    undo_depth: Annotated[int | None, typer.Option(help="Deltas that can be rolled back in memory. [16]")] = None,
    max_queue_rows: Annotated[
        int | None, typer.Option(help="Candidate rows that may wait before shedding. [65536]")
    ] = None,
    table_memory: Annotated[
        str | None,
        typer.Option(help="Memory for rows: model/table=SIZE or model/*=SIZE, separated by commas. [all of them]"),
    ] = None,
    scratch: Annotated[
        str | None, typer.Option(help="Folder for rows of such tables that deltas change. [the system's]")
    ] = None,
    remote_url: Annotated[
        str | None, typer.Option(help="Row store of remote tables; better set as FRESHET_REMOTE_URL. [none]")
    ] = None,
    remote_tables: Annotated[
        str | None, typer.Option(help="Tables in the row store, model/table or model/*, separated by commas.")
    ] = None,
    remote_timeout_s: Annotated[float | None, typer.Option(help="Seconds to wait for the row store. [0.05]")] = None,
    remote_on_error: Annotated[
        str | None, typer.Option(help="Rows that cannot be had: default (row) or fail (503). [default]")
    ] = None,
    remote_cache_rows: Annotated[
        int | None, typer.Option(help="Rows of each remote table kept in memory, in each process. [1000000]")
    ] = None,
    record: Annotated[str | None, typer.Option(help="Folder for a sample of the requests, as Parquet. [none]")] = None,
    record_share: Annotated[float | None, typer.Option(help="Share of the requests to record. [0.01]")] = None,
    record_max_bytes: Annotated[
        int | None, typer.Option(help="Disk for recorded requests; the oldest go first. [1073741824]")
    ] = None,
    model_control: Annotated[
        str | None,
        typer.Option(help="explicit lets clients of the data ports load and unload models; none does not. [none]"),
    ] = None,
    shared_memory: Annotated[
        str | None, typer.Option(help="on lets clients send tensors in system shared memory; one worker only. [off]")
    ] = None,
    config: Annotated[str | None, typer.Option(help="TOML file with any of these options as keys.")] = None,
) -> None:
    """Serves a model repository until SIGTERM.

    Every option is also an environment variable (FRESHET_HTTP_PORT) and a key of the --config file
    (http_port).
    """
    options = {key: value for key, value in locals().items() if key != "config"}
    from serving.serve_config import load_config, split_names

    if models is not None:
        options["models"] = split_names(models)
    if remote_tables is not None:
        options["remote_tables"] = split_names(remote_tables)
    if table_memory is not None:
        options["table_memory"] = split_names(table_memory)
    settings = load_config(options, os.environ, config)
    log_to_stderr(settings.log_level, settings.log_format)
    from serving.server import Server

    raise typer.Exit(Server(settings, version=package_version()).run())


@app.command()
def inspect(
    model: Annotated[str | None, typer.Argument(help="A model of the repository; all of them when left out.")] = None,
    repository: Annotated[str, typer.Option(envvar="FRESHET_REPOSITORY", help="Folder of models.")] = "",
    version: Annotated[int | None, typer.Option(help="A version; the newest when left out.")] = None,
    verify: Annotated[bool, typer.Option(help="Also check size and checksum of every file.")] = False,
    graph: Annotated[
        Path | None, typer.Option(help="How this version's folder, SavedModel or .keras file is split.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="With --graph: an SVG file to draw the split into.")] = None,
    signature: Annotated[str, typer.Option(help="With --graph: which signature of a SavedModel.")] = "serving_default",
) -> None:
    """Describes models of a repository from their manifests, without serving them; or with --graph how one is split."""
    if graph is not None:
        draw(graph, out, signature)
        return
    from processor.errors import BadInput
    from serving.commands.inspection import describe_repository

    if not repository:
        raise BadInput("repository: --repository wanted, or --graph")
    describe_repository(repository, model, version, verify)


@delta_app.command("list")
def delta_list(
    repository: Annotated[str, typer.Option(envvar="FRESHET_REPOSITORY", help="Folder of models.")],
    model: Annotated[str, typer.Argument(help="A model of the repository.")],
    version: Annotated[int | None, typer.Option(help="A version; the newest when left out.")] = None,
) -> None:
    """Lists the deltas that lie in a repository, each verified, with what it changes."""
    from serving.commands.inspection import describe_deltas

    describe_deltas(repository, model, version)


@delta_app.command("apply")
def delta_apply(
    model: Annotated[str, typer.Argument(help="The model.")],
    file: Annotated[
        str, typer.Argument(help="The delta file; with --on-server, its path inside the server's repository.")
    ],
    on_server: Annotated[
        bool, typer.Option("--on-server", help="The file is in the server's repository already.")
    ] = False,
    admin: AdminOption = DEFAULT_ADMIN,
    admin_token: TokenOption = "",
) -> None:
    """Applies one delta on a running server and waits until it is served."""

    from processor.errors import BadInput
    from serving.commands.admin_client import Admin, quoted

    route, server = f"/admin/models/{quoted(model)}/deltas", Admin(admin, admin_token)
    if on_server:
        applied = server.send_json("POST", route, {"path": file})
    else:
        try:
            data = Path(file).read_bytes()
        except OSError as error:
            raise BadInput(f"{file}: {error.strerror}") from None
        applied = server.upload(route, data)
    print(
        f"{applied['model']} {applied['generation']}: {applied['rows']} rows, {applied['removed']} removed, "
        f"{applied['apply_ms']:.1f} ms"
    )


@delta_app.command("rollback")
def delta_rollback(
    model: Annotated[str, typer.Argument(help="The model.")],
    generation: Annotated[str, typer.Argument(help="The generation to go back to, such as 3.16.")],
    admin: AdminOption = DEFAULT_ADMIN,
    admin_token: TokenOption = "",
) -> None:
    """Goes back to an earlier generation on a running server."""
    from serving.commands.admin_client import Admin, quoted

    route = f"/admin/models/{quoted(model)}/rollback"
    reached: dict[str, Any] = Admin(admin, admin_token).send_json("POST", route, {"generation": generation})
    print(f"{reached['model']} {reached['generation']}")
