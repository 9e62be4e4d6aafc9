"""Which executables serve a version, and what becomes of those that must not run."""

import hashlib
import logging
import os
import re
from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.processor.backends import Artefact, IoSpec, missing, pack
from freshet_serving.processor.errors import BadInput, Corrupt
from freshet_serving.processor.extras import how_to_install
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.machine import Machine
from freshet_serving.processor.package import SCORE, ExecutableEntry, File, crc32, sha256
from freshet_serving.processor.running.opening import executable_files, open_programs

HERE = Machine(frozenset({"x86_64", "avx2"}), "this one")
SOURCE = hashlib.sha256(b"graph").hexdigest()


class Backend:
    """Takes what begins with its own name, and remembers it."""

    def __init__(self, name, compiles=True):
        self.name, self.library, self.compiles = name, f"{name} 2.0", compiles
        self.added: list[Artefact] = []

    def open_program(self, spec, threads=1, runs=1):
        return self

    def add(self, artefact):
        if artefact.data and not artefact.data.startswith(self.name.encode()):
            raise Corrupt(f"executable b{artefact.bucket}: refused by {self.library}")
        if not artefact.data and not self.compiles:
            raise Corrupt("cannot compile here")
        self.added.append(artefact)


class Package:
    """Files in memory, as a committed version has them."""

    def __init__(self):
        self.files, self.entries = {}, []
        self.model, self.version = "small", 1
        self.format, self.graphs = "freshet/2", {}

    @property
    def manifest(self):
        return self

    @property
    def executables(self):
        return self.entries

    def put(self, name, data):
        self.files[name] = (data, File(len(data), crc32(data)))

    def file(self, name):
        data, entry = self.files[name]
        if len(data) != entry.nbytes or crc32(data) != entry.crc32:
            raise Corrupt(f"{name}: does not match its checksum")
        return data

    def machine_code(self, at, backend="xla", origin=True, **changes):
        """Adds an executable that was compiled on this very machine."""
        data = pack(f"{backend} code {at}".encode(), backend, at, SOURCE)
        name = f"compiled/{backend}/b{at}"
        self.put(name, data)
        if origin:
            self.put(name + ".origin", b"portable")
        entry = ExecutableEntry(
            backend, "x86_64-avx2", at, name, SOURCE, ["w"], library=f"{backend} 2.0", features=["avx2", "x86_64"],
            sha256=sha256(data), origin=name + ".origin" if origin else "",
        )  # fmt: skip
        self.entries.append(replace(entry, **changes))
        return self

    def portable(self, bucket, backend="onnxruntime", **changes):
        name = f"compiled/{backend}/b{bucket}"
        self.put(name, f"{backend} model".encode())
        self.entries.append(replace(ExecutableEntry(backend, "cpu", bucket, name, SOURCE, ["w"]), **changes))
        return self


def opened(package, machine=HERE, absent=(), **options):
    backends = {}

    def load(name):
        if name in absent:
            raise missing(name, name, name)
        return backends.setdefault(name, Backend(name, **options))

    return open_programs(package, IoSpec.of_matrix(3, {"score": 1}), machine=machine, load=load), backends


def served(found):
    return {bucket: entry.backend for bucket, entry in found.chosen.items()}


def test_first_backend_of_each_bucket_serves_and_others_stay_unimported():
    package = Package().machine_code(64).portable(64).portable(1).machine_code(1, "openvino")
    found, backends = opened(package)
    assert served(found) == {1: "onnxruntime", 64: "xla"}
    assert sorted(backends) == ["onnxruntime", "xla"]
    assert found.refused == []
    assert [a.data for a in backends["xla"].added] == [b"xla code 64"]


def damaged(package, name, change):
    data, entry = package.files[name]
    package.files[name] = (change(data), entry)


refusals = {
    "foreign": (
        lambda p: p.machine_code(4, features=["x86_64", "avx2", "amx_tile", "avx512f"]),
        "foreign: compiled for a processor with amx_tile, avx512f, which this one lacks",
    ),
    "stale library": (
        lambda p: p.machine_code(4, library="xla 1.9"),
        r"stale: compiled by xla 1\.9, xla 2\.0 is installed",
    ),
    "stale graph": (
        lambda p: p.machine_code(4, source="0" * 64),
        "stale: compiled from another graph than the manifest's",
    ),
    "truncated": (
        lambda p: damaged(p.machine_code(4), "compiled/xla/b4", lambda d: d[:-1]),
        "does not match its checksum",
    ),
    "tampered, checksum made to fit": (
        lambda p: p.put(p.machine_code(4).entries[0].file, pack(b"xla evil", "xla", 4, SOURCE)),
        "does not match its SHA-256",
    ),
    "of another bucket": (
        lambda p: p.machine_code(4, bucket=8).portable(8),
        "executable b8: expected bucket '8', got '4'",
    ),
    "refused by its library": (lambda p: p.put(p.portable(4, "xla").entries[0].file, b"junk"), r"refused by xla 2\.0"),
}


@pytest.mark.parametrize(("damage", "reason"), refusals.values(), ids=refusals.keys())
def test_unusable_executable_is_refused_with_its_reason_and_next_serves(damage, reason, caplog):
    package = Package()
    damage(package)
    package.portable(4)
    with caplog.at_level(logging.WARNING, "freshet.executables"):
        found, backends = opened(package)
    assert set(served(found).values()) == {"onnxruntime"}
    assert "xla" not in backends or not backends["xla"].added
    assert len(found.refused) == 1
    assert found.refused[0].startswith("xla-")
    assert re.search(reason, found.refused[0])
    assert re.search(r"xla-\S+ float32 b\d refused: ", caplog.text)


def test_missing_library_gives_one_line_and_next_backend_serves():
    found, _ = opened(Package().machine_code(4).portable(4), absent=["xla"])
    assert served(found) == {4: "onnxruntime"}
    assert found.refused == [
        f"xla-x86_64-avx2 float32 b4: backend xla: the library xla is not installed: {how_to_install('xla')}"
    ]


def test_foreign_executable_does_not_import_its_library():
    package = Package().machine_code(4, features=["sve"]).portable(4)
    assert sorted(opened(package)[1]) == ["onnxruntime"]


@pytest.mark.parametrize("damage", ["foreign", "stale library", "stale graph", "truncated"])
def test_portable_form_is_compiled_when_no_executable_can_serve(damage):
    package = Package()
    refusals[damage][0](package)
    found, backends = opened(package)
    assert served(found) == {4: "xla"}
    (artefact,) = backends["xla"].added
    assert (artefact.data, artefact.origin, artefact.bucket) == (b"", b"portable", 4)


def test_damaged_portable_form_is_not_compiled():
    package = Package().machine_code(4, features=["sve"])
    damaged(package, "compiled/xla/b4.origin", lambda d: d + b"!")
    with pytest.raises(BadInput, match="foreign: compiled for a processor with sve"):
        opened(package)


def test_bfloat16_is_not_compiled_for_a_processor_without_it():
    package = Package().machine_code(4, features=["avx512_bf16"], precision="bfloat16")
    with pytest.raises(BadInput, match="foreign"):
        opened(package)
    newer = Machine(HERE.features | {"avx512_bf16"}, "newer")
    assert served(opened(package, newer)[0]) == {4: "xla"}


def test_version_with_an_unserved_bucket_is_refused_with_first_reason():
    package = Package().portable(1).machine_code(4, features=["sve"], origin=False)
    with pytest.raises(BadInput, match="foreign: compiled for a processor with sve"):
        opened(package)
    with pytest.raises(Corrupt, match="not compiled; run `freshet compile`"):
        opened(Package())


def test_costs_come_from_the_manifest_for_this_machine_single_threaded():
    package = Package().portable(1, cost_us=10.0, measured_on=HERE.name)
    package.portable(4, cost_us=25.0, measured_on=HERE.name)
    found, _ = opened(package)
    assert found.cost(1) == {1: pytest.approx(1e-5), 4: pytest.approx(2.5e-5)}
    assert found.cost(2) == {}
    assert opened(package, Machine(HERE.features, "another"))[0].cost(1) == {}
    package.portable(8)
    assert opened(package)[0].cost(1) == {}


def test_code_comes_with_its_portable_form():
    package = Package().machine_code(4, frozen="f" * 64).machine_code(8).machine_code(16, origin=False)
    _, backends = opened(package)
    added = [(a.frozen, a.origin) for a in backends["xla"].added]
    assert added == [("f" * 64, b"portable"), ("", b"portable"), ("", b"")]
    assert executable_files(package) == set(package.files)


@pytest.mark.parametrize("frozen", ["", "f" * 64])
def test_damaged_portable_form_counts_where_weights_are_frozen(frozen):
    package = Package().machine_code(4, frozen=frozen)
    package.files["compiled/xla/b4.origin"] = (b"damaged!", package.files["compiled/xla/b4.origin"][1])
    if frozen:
        with pytest.raises(Corrupt, match="does not match its checksum"):
            opened(package)
    else:
        assert opened(package)[1]["xla"].added[0].origin == b""


def test_programs_that_differ_by_weights_alone_have_equal_graphs():
    def graphs(frozen, origin=b"portable"):
        package = Package().machine_code(4, frozen=frozen)
        package.put("compiled/xla/b4.origin", origin)
        return opened(package)[0].graphs

    assert graphs("e" * 64) == graphs("f" * 64)
    assert graphs("e" * 64) != graphs("e" * 64, b"another")
    assert len(opened(Package().portable(4).portable(8))[0].graphs) == 2


def test_real_version_with_a_damaged_executable_uses_the_next(tmp_path):
    from freshet_serving.processor.repository.version import MANIFEST, VersionReader
    from tests.support.packages import make_inputs, open_version, write_package

    folder = write_package(tmp_path)
    wanted = _score(open_version(folder), make_inputs([1, 2, 3]))
    manifest = VersionReader(folder).manifest
    code = pack(b"code", "onnxruntime", 4, SOURCE)
    (folder / "compiled/extra").write_bytes(code[:-3] + b"abc")
    entry = ExecutableEntry("onnxruntime", "cpu", 4, "compiled/extra", SOURCE, [], sha256=sha256(code))
    changed = replace(
        manifest,
        executables=[entry, *manifest.executables],
        files={**manifest.files, "compiled/extra": File(len(code), crc32(code[:-3] + b"abc"))},
    )
    (folder / MANIFEST).write_bytes(changed.to_json())
    version = open_version(folder)
    np.testing.assert_array_equal(_score(version, make_inputs([1, 2, 3])), wanted)
    assert version.replicas.chosen[4] == manifest.executables[1]
    os.truncate(folder / "compiled/extra", 5)
    np.testing.assert_array_equal(_score(open_version(folder), make_inputs([1, 2, 3])), wanted)


def _score(version, inputs):
    replica = version.replicas
    with replica.pinned(0) as state:
        bound = replica.plan.bind_inputs(inputs)
        x, out = np.zeros((4, replica.plan.width), np.float32), np.empty((4, 1), np.float32)
        replica.plan.fill(BatchView.of(state.tables, state.epoch, bound), x)
        state.executables[SCORE][4].bind_buffers({"x": x}, {"score": out})()
        return out[:3]
