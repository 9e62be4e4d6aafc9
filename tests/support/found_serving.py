"""Where modules of serving, loadtest and freshet_serving are tested that have no test file of their own name.

tests/test_found.py reads it.
"""

SCENARIOS = ("tests/loadtest/bench/test_bench_report.py",)
"""Every scenario is imported there, with what it measures by; what it measures nobody asserts."""

BY_HAND: tuple[str, ...] = ()
"""No test comes by: a program that measures, or plays, and is run by who wants to see."""

TESTED_BY: dict[str, tuple[str, ...]] = {
    "serving/client/grpc_transport.py": ("tests/e2e/test_conformance.py", "tests/serving/client/test_client.py"),
    "serving/codecs/proto_files.py": (
        "tests/generators/test_generate_messages.py",
        "tests/serving/codecs/test_messages.py",
    ),
    "serving/commands/demo_traffic.py": BY_HAND,
    "serving/commands/import_command.py": ("tests/e2e/test_import_live.py",),
    "serving/commands/shutdown_signals.py": ("tests/e2e/test_follow_live.py", "tests/e2e/test_join_live.py"),
    "serving/commands/recording_commands.py": ("tests/e2e/test_production_live.py",),
    "serving/commands/train_command.py": ("tests/e2e/test_train_live.py", "tests/e2e/test_conformance.py"),
    "serving/front/queries.py": (
        "tests/serving/http/test_app.py",
        "tests/serving/front/test_exchange.py",
        "tests/e2e/test_protocol_cases.py",
    ),
    "serving/http/schemas.py": ("tests/serving/http/test_openapi.py", "tests/e2e/test_schemas.py"),
    "serving/rpc/tfs.py": ("tests/serving/rpc/test_handlers.py", "tests/e2e/test_protocol_cases.py"),
    "serving/telemetry/observers.py": ("tests/serving/test_server.py", "tests/e2e/test_production_live.py"),
    "serving/workers/worker_pool_metrics.py": ("tests/e2e/test_workers_live.py",),
    "loadtest/bench/bare.py": SCENARIOS,
    "loadtest/bench/bench_backends.py": BY_HAND,
    "loadtest/bench/bench_engine.py": SCENARIOS,
    "loadtest/bench/bench_hashing.py": SCENARIOS,
    "loadtest/bench/bench_passes.py": BY_HAND,
    "loadtest/bench/bench_tables.py": BY_HAND,
    "loadtest/bench/bench_useronce.py": SCENARIOS,
    "loadtest/bench/collector.py": BY_HAND,
    "loadtest/bench/compute.py": SCENARIOS,
    "loadtest/bench/crowding.py": BY_HAND,
    "loadtest/bench/dtypes.py": BY_HAND,
    "loadtest/bench/echo.py": BY_HAND,
    "loadtest/bench/engine_time.py": BY_HAND,
    "loadtest/bench/front.py": SCENARIOS,
    "loadtest/bench/loading.py": BY_HAND,
    "loadtest/bench/lookup.py": SCENARIOS,
    "loadtest/bench/memory_budget.py": SCENARIOS,
    "loadtest/bench/pairs.py": SCENARIOS,
    "loadtest/bench/calibration_rows.py": BY_HAND,
    "loadtest/bench/scale.py": BY_HAND,
    "loadtest/bench/sequence_peer.py": BY_HAND,
    "loadtest/bench/training/freshet_side.py": BY_HAND,
    "loadtest/bench/training/fuxictr_din_side.py": BY_HAND,
    "loadtest/bench/training/fuxictr_side.py": BY_HAND,
    "loadtest/bench/training/keras_quality.py": BY_HAND,
    "loadtest/bench/training/keras_side.py": BY_HAND,
    "loadtest/bench/training/process_auc.py": ("tests/loadtest/bench/training/test_process_grid.py",),
    "loadtest/bench/training/process_shapes.py": ("tests/loadtest/bench/training/test_process_race.py",),
    "loadtest/bench/training/process_side.py": ("tests/loadtest/bench/training/test_process_race.py",),
    "loadtest/bench/training/race_shape.py": ("tests/loadtest/bench/training/test_race.py",),
    "loadtest/bench/training/torch_side.py": BY_HAND,
    "loadtest/bench/verdict/fbgemm_side.py": BY_HAND,
    "loadtest/bench/verdict/lookup_race.py": BY_HAND,
    "loadtest/bench/training/follow_race.py": BY_HAND,
    "loadtest/bench/verdict/lookup_shape.py": BY_HAND,
    "loadtest/bench/verdict/pooling_side.py": BY_HAND,
    "loadtest/bench/training/turns.py": ("tests/loadtest/bench/training/test_race.py",),
    "loadtest/bench/scenarios/before.py": SCENARIOS,
    "loadtest/bench/scenarios/deltas.py": SCENARIOS,
    "loadtest/bench/scenarios/group.py": SCENARIOS,
    "loadtest/bench/scenarios/layouts.py": BY_HAND,
    "loadtest/bench/scenarios/micro.py": SCENARIOS,
    "loadtest/bench/scenarios/neighbour.py": SCENARIOS,
    "loadtest/bench/scenarios/observe.py": SCENARIOS,
    "loadtest/bench/scenarios/overload.py": SCENARIOS,
    "loadtest/bench/scenarios/precision.py": BY_HAND,
    "loadtest/bench/scenarios/protocols.py": SCENARIOS,
    "loadtest/bench/scenarios/saturated.py": SCENARIOS,
    "loadtest/bench/scenarios/single.py": SCENARIOS,
    "loadtest/bench/scenarios/soak.py": SCENARIOS,
    "loadtest/bench/scenarios/switchover.py": SCENARIOS,
    "loadtest/bench/scenarios/useronce.py": SCENARIOS,
    "loadtest/bench/startup_time.py": BY_HAND,
    "loadtest/bench/scenarios/chain.py": BY_HAND,
    "loadtest/live/locustfile.py": BY_HAND,
    # Imported there; it probes a live server, which a load test has.
    "loadtest/live/prober.py": ("tests/loadtest/live/test_run.py",),
    "loadtest/load/admin_calls.py": SCENARIOS,
    "loadtest/load/replay.py": ("tests/serving/telemetry/test_request_recorder.py",),
    "loadtest/peers/measure.py": ("tests/loadtest/peers/test_peers_report.py",),
    "loadtest/peers/plain.py": ("tests/loadtest/peers/test_bodies.py",),
    # Imported there; peers are installed by hand.
    "loadtest/peers/process.py": ("tests/loadtest/peers/test_peers_report.py",),
    "loadtest/peers/same_kernels.py": BY_HAND,
}

SEAMS: dict[str, str] = {
    "tests/serving/codecs/test_limits_of_dialects.py": "what a request may cost, asked of every codec by one table",
    "tests/serving/codecs/test_left_out_inputs.py": "what a request may leave out, asked of every codec by one table",
    "tests/freshet_serving/test_facade.py": "what the package offers, and that its names lead to it: every floor's",
    "tests/serving/workers/test_processes.py": "changes, channel and the engine's pins, with a reader in a process",
}
