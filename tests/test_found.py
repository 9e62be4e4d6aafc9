"""A module's tests are found by its name: those of floor/room/name.py lie in tests/floor/room/test_name.py.

Where they are many they are divided by subject, test_name_subject.py beside it. Where a module is seen only through
another one (a kernel through its table, a printer through its report), TESTED_BY says where it would be missed.
"""

from functools import cache
from pathlib import Path

from tests.support import found_serving

ROOT = Path(__file__).parents[1]
FLOORS = ("freshet_serving", "processor", "compiler", "models", "serving", "loadtest", "generators")
MAX_LINES = 600

BUILDERS = ROOT / "loadtest" / "bench" / "foreign_models" / "builders"
FOREIGN_BUILDERS = sorted(path.stem for path in BUILDERS.glob("*.py") if not path.stem.startswith("__"))
TESTED_BY: dict[str, tuple[str, ...]] = {
    "compiler/imports/onnx_native/native_feeds.py": ("tests/compiler/imports/onnx_native/test_native_import.py",),
    "models/training/run_summary.py": ("tests/models/training/test_loop.py",),
    "processor/sessions/group_options.py": ("tests/processor/sessions/test_group.py",),
    "processor/sessions/session_queue.py": ("tests/processor/sessions/test_group.py",),
    "processor/repository/log/log_reader.py": ("tests/processor/repository/log/test_change_log.py",),
    "processor/repository/log/re_signing.py": ("tests/processor/versions/test_model_signed.py",),
    "processor/extensions/deeprec/predict_messages.py": ("tests/processor/extensions/deeprec/test_codec.py",),
    "processor/kernels/bucket_bytes.py": ("tests/processor/extensions/remote_rows/test_layout.py",),
    "processor/kernels/conversion.py": (
        "tests/processor/tables/test_quantise.py",
        "tests/processor/kernels/test_pool.py",
    ),
    "processor/kernels/counting.py": ("tests/processor/watching/test_sketch.py",),
    "processor/kernels/bucket_plans.py": ("tests/processor/running/test_cost.py",),
    "processor/kernels/crosses.py": ("tests/processor/features/test_evaluation.py",),
    "processor/kernels/length_prefixed.py": ("tests/serving/codecs/test_kserve_header_bytes_tensor.py",),
    "processor/kernels/pointers.py": (
        "tests/processor/kernels/test_pool.py",
        "tests/processor/versions/test_control.py",
    ),
    "processor/kernels/remote.py": ("tests/processor/extensions/remote_rows/test_reader.py",),
    "processor/kernels/row_cache.py": ("tests/processor/extensions/remote_rows/test_cache.py",),
    "processor/kernels/rows.py": ("tests/processor/tables/test_table.py",),
    "processor/kernels/string_hashes.py": ("tests/processor/features/test_evaluation.py",),
    "processor/kernels/top_rows.py": ("tests/processor/tables/test_row_ranking.py",),
    "processor/kernels/texts.py": ("tests/processor/features/test_evaluation.py",),
    "processor/kernels/wire_format.py": ("tests/processor/features/test_message_tree.py",),
    "processor/extensions/object_stores/counted_store.py": ("tests/processor/extensions/object_stores/test_mirror.py",),
    "processor/extensions/object_stores/mirrored_repository.py": (
        "tests/processor/versions/test_model_mirrored.py",
        "tests/processor/extensions/object_stores/test_mirror.py",
        "tests/processor/extensions/object_stores/test_mirrored_storage.py",
    ),
    "processor/extensions/online_features/online_store.py": (
        "tests/processor/extensions/online_features/test_redis_store.py",
        "tests/processor/extensions/online_features/test_reader.py",
    ),
    "processor/package/atomic.py": (
        "tests/processor/package/test_delta.py",
        "tests/processor/repository/test_model_repository.py",
    ),
    "processor/running/fillers.py": (
        "tests/processor/running/test_graph_run.py",
        "tests/models/training/test_named_inputs.py",
    ),
    "processor/features/input_reader.py": ("tests/processor/features/test_plan.py",),
    "processor/package/manifest_entries.py": ("tests/processor/package/test_manifest.py",),
    "processor/kernels/records.py": ("tests/processor/features/test_entity_records.py",),
    "processor/running/given_rows.py": ("tests/processor/running/test_bounded.py",),
    "processor/running/warm_up.py": ("tests/processor/versions/test_replica_warm_up.py",),
    "processor/extensions/remote_rows/remote_table.py": ("tests/processor/extensions/remote_rows/test_reader.py",),
    "processor/tables/row_log.py": ("tests/processor/tables/test_tier.py",),
    "processor/versions/change_results.py": ("tests/processor/versions/test_model_deltas.py",),
    "processor/watching/stats.py": ("tests/processor/sessions/test_session.py", "tests/processor/test_overview.py"),
    "compiler/backends/onnxruntime.py": (
        "tests/compiler/backends/test_base.py",
        "tests/compiler/building/test_compile.py",
    ),
    "compiler/backends/tensorflow.py": ("tests/compiler/backends/test_base.py",),
    "compiler/backends/tensorflow_runtime.py": ("tests/compiler/backends/test_base.py",),
    # Where there is a GPU.
    "compiler/backends/tensorrt.py": ("tests/processor/backends/test_tensorrt.py",),
    "compiler/building/packaging.py": ("tests/compiler/imports/test_importer.py", "tests/models/training/test_loop.py"),
    "compiler/imports/dense_side.py": ("tests/compiler/imports/test_cut.py",),
    "compiler/imports/draft.py": ("tests/compiler/imports/test_cut.py",),
    "compiler/imports/report_svg.py": ("tests/e2e/test_import_live.py",),
    "compiler/imports/foreign_graph.py": (
        "tests/compiler/imports/test_cut.py",
        "tests/compiler/imports/test_foreign.py",
    ),
    "compiler/imports/import_report.py": ("tests/e2e/test_import_live.py",),
    "compiler/imports/embedding_lookups.py": ("tests/compiler/imports/test_cut.py",),
    "compiler/imports/onnx_graph/calls.py": (
        "tests/compiler/imports/onnx_graph/test_arithmetic.py",
        "tests/compiler/imports/onnx_graph/test_rearranging.py",
    ),
    "compiler/imports/report_text.py": ("tests/e2e/test_import_live.py",),
    "compiler/imports/runner.py": ("tests/compiler/imports/test_cut.py",),
    "compiler/imports/shapes.py": ("tests/compiler/imports/test_cut.py",),
    "compiler/imports/stage_graph.py": (
        "tests/compiler/imports/test_cut.py",
        "tests/compiler/imports/test_parity_live.py",
    ),
    "compiler/passes/flops.py": (
        "tests/compiler/passes/test_interactions.py",
        "tests/compiler/passes/test_optimise.py",
    ),
    "compiler/passes/patterns.py": (
        "tests/compiler/passes/test_interactions.py",
        "tests/compiler/passes/test_linear.py",
    ),
    "models/config/data_section.py": ("tests/models/config/test_train_config.py",),
    "models/config/model_section.py": ("tests/models/config/test_train_config.py",),
    "models/config/publish_section.py": ("tests/models/config/test_train_config.py",),
    "models/config/toml_sections.py": ("tests/models/config/test_train_config.py",),
    "models/config/train_section.py": ("tests/models/config/test_train_config.py",),
    "models/zoo/histories.py": ("tests/models/zoo/test_din.py", "tests/models/zoo/test_stca.py"),
    "models/zoo/option_types.py": ("tests/models/config/test_arch_options.py",),
    "models/embedding/row_budget.py": ("tests/models/embedding/test_tiered_rows.py",),
    "models/embedding/id_rows.py": ("tests/models/embedding/test_variable.py",),
    "models/data/decoding_child.py": ("tests/models/data/test_decoding.py",),
    "processor/repository/log/difference.py": (
        "tests/models/publishing/test_publisher.py",
        "tests/models/publishing/test_publisher_chain.py",
    ),
    "models/publishing/rollback_patch.py": (
        "tests/models/publishing/test_publisher.py",
        "tests/models/publishing/test_publisher_chain.py",
    ),
    "models/zoo/architectures.py": ("tests/models/zoo/test_arch.py",),
    "models/zoo/layers.py": ("tests/models/zoo/test_deepfm.py", "tests/models/zoo/test_dlrm.py"),
    "models/streams/stream.py": (
        "tests/models/streams/test_followed_source.py",
        "tests/models/streams/test_growing_folder.py",
    ),
    "models/training/stream_guard.py": ("tests/models/training/test_loop_follow.py",),
    "models/training/full_versions.py": (
        "tests/models/training/test_loop_versions.py",
        "tests/models/training/test_loop_follow.py",
    ),
    "models/training/stream_quality.py": ("tests/models/training/test_loop_versions.py",),
    "loadtest/bench/plain_din.py": ("tests/loadtest/bench/test_bench_sequences.py",),
    **{
        f"loadtest/bench/training/loops/{name}.py": ("tests/loadtest/bench/training/loops/test_side.py",)
        for name in ("keras_networks", "keras_side", "torch_networks", "torch_sequences", "torch_side")
    },
    "loadtest/bench/feast_side.py": ("tests/loadtest/bench/test_bench_feast.py",),
    "loadtest/bench/feast_server_side.py": ("tests/loadtest/bench/test_bench_feast_server.py",),
    "loadtest/bench/guard_streams.py": ("tests/loadtest/bench/test_guard_trial.py",),
    "loadtest/bench/guard_replay.py": ("tests/loadtest/bench/test_guard_trial.py",),
    "loadtest/bench/guard_poison.py": ("tests/loadtest/bench/test_guard_trial.py",),
    "compiler/backends/native_onnx.py": ("tests/compiler/dense/test_onnx_dense_graph.py",),
    "compiler/imports/retrained.py": (
        "tests/compiler/imports/test_retrained_export.py",
        "tests/compiler/imports/onnx_native/test_native_export.py",
    ),
    "compiler/imports/samples_required.py": ("tests/compiler/imports/test_samples.py",),
    "compiler/imports/export_check.py": ("tests/compiler/imports/test_retrained_export.py",),
    "compiler/imports/onnx_native/staged_graph.py": ("tests/compiler/imports/onnx_native/test_onnx_stage.py",),
    # Builders of foreign models run in environments of their own, by hand.
    **{
        f"loadtest/bench/foreign_models/builders/{name}.py": ("tests/loadtest/bench/foreign_models/test_catalogue.py",)
        for name in FOREIGN_BUILDERS
    },
    **found_serving.TESTED_BY,
}
"""Module -> the test files of others that would fail if it broke; none where it is only ever run by hand."""

SEAMS: dict[str, str] = {
    "tests/processor/capi/test_capi.py": "the command that builds the C interface, which an extension has",
    "tests/processor/running/test_history_lengths.py": "histories of every length, from a filled input to scores",
    "tests/compiler/imports/onnx_native/test_long_loops.py": "loops that take too long, from file to reply",
    "tests/compiler/imports/onnx_native/test_random_graphs.py": "ONNX graphs of many shapes, from file to reply",
    "tests/compiler/imports/test_random_models.py": "TensorFlow models of many shapes, from SavedModel to reply",
    "tests/processor/test_canary.py": "split traffic and what takes a version out of it, from request to verdict",
    "tests/compiler/imports/test_parity_live.py": "imported models behind a real server against TensorFlow",
    "tests/models/training/test_named_inputs.py": "a kind of input of its own, from training to serving",
    "tests/models/training/test_parity_transforms.py": "what is made of raw columns, in training and in serving",
    "tests/models/training/test_parity.py": "training, publication and serving as one function, to the bit",
    "tests/models/training/test_several_labels.py": "labels, weights and dropout, from batches to what is served",
    "tests/models/training/test_zoo_examples.py": "the files in examples/, on real data, trained, published and served",
    **found_serving.SEAMS,
}
"""Test files under a floor that are about several modules at once -> what meets in them."""


def modules():
    """Every module that tests can be about, as a path; without entry points and the servers of peers' own venvs."""
    for floor in FLOORS:
        for path in sorted((ROOT / floor).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not path.stem.startswith("__") and not (name.startswith("loadtest/peers/") and path.stem == "server"):
                yield name


def files_of_tests():
    """Every test file under a floor, as a path."""
    for floor in FLOORS:
        yield from (path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests" / floor).rglob("test_*.py")))


def about(test):
    """Modules that a test file may be about by its name: floor/room/a_b.py and floor/room/a.py of test_a_b.py."""
    folder, _, name = test.removeprefix("tests/").rpartition("/")
    words = name.removeprefix("test_").removesuffix(".py").split("_")
    return [f"{folder}/{'_'.join(words[:n])}.py" for n in range(len(words), 0, -1)]


@cache
def found():
    """Module -> the test files of its name."""
    tests = {module: [] for module in modules()}
    for test in files_of_tests():
        module = next((module for module in about(test) if module in tests), None)
        if module is not None:
            tests[module].append(test)
    return tests


def test_every_module_has_a_test_file_or_an_entry():
    assert [module for module, tests in found().items() if not tests and module not in TESTED_BY] == []


def test_test_entries_name_untested_modules_and_existing_test_files():
    assert [module for module in TESTED_BY if found().get(module) != []] == []
    assert [test for tests in TESTED_BY.values() for test in tests if not (ROOT / test).is_file()] == []


def test_every_test_file_matches_a_module_or_is_listed():
    named = {test for tests in found().values() for test in tests}
    assert [test for test in files_of_tests() if (test in named) == (test in SEAMS)] == []
    assert [test for test in SEAMS if not (ROOT / test).is_file()] == []


def test_tests_folder_has_no_shared_modules_at_its_top():
    flat = {path.stem for path in (ROOT / "tests").glob("*.py")}
    assert {name for name in flat if not name.startswith("test_")} == {"__init__", "conftest"}


def test_test_file_stays_within_its_line_limit():
    paths = (ROOT / "tests").rglob("*.py")
    lines = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in paths}
    assert {name: n for name, n in lines.items() if n > MAX_LINES} == {}
