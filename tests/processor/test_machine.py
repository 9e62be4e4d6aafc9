"""What the system says of its processor, as features."""

import platform

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.machine import Machine, parse, target_of, this_machine

XEON = """processor\t: 0
model name\t: Intel(R) Xeon(R) Processor @ 2.50GHz
flags\t\t: fpu vme sse2 ssse3 fma avx2 avx512f avx512bw avx512_vnni pku smep
processor\t: 1
model name\t: Intel(R) Xeon(R) Processor @ 2.50GHz
flags\t\t: fpu vme sse2 ssse3 fma avx2 avx512f avx512_vnni
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd sve bf16 i8mm\n"


def test_only_relevant_features_of_every_core_count():
    machine = parse(XEON, "x86_64")
    assert machine.features == {"x86_64", "sse2", "ssse3", "fma", "avx2", "avx512f", "avx512_vnni"}
    assert machine.name == "Intel(R) Xeon(R) Processor @ 2.50GHz (x86_64-avx512-vnni)"
    assert machine.target == "x86_64-avx512-vnni"
    assert not machine.bfloat16


def test_arm_processor_is_described_by_its_features_line():
    machine = parse(ARM, "arm64")
    assert machine.features == {"aarch64", "asimd", "sve", "bf16", "i8mm"}
    assert machine.target == "aarch64-sve"
    assert machine.bfloat16


def test_unknown_system_has_only_its_instruction_set():
    machine = parse("", "amd64")
    assert machine.features == {"x86_64"}
    assert machine.lacks(["x86_64", "avx2"]) == ["avx2"]


@pytest.mark.parametrize(
    ("features", "name"),
    [
        ({"x86_64", "avx512f", "avx512_bf16", "amx_tile"}, "x86_64-amx"),
        ({"x86_64", "avx512f", "avx512_vnni", "avx512_bf16"}, "x86_64-avx512-bf16"),
        ({"x86_64", "avx", "avx2"}, "x86_64-avx2"),
        ({"x86_64"}, "x86_64"),
        ({"avx2"}, "unknown-avx2"),
    ],
)
def test_target_is_named_after_the_newest_feature_level(features, name):
    assert target_of(features) == name


@given(st.text())
def test_arbitrary_cpuinfo_gives_a_machine(text):
    assert "x86_64" in parse(text, "x86_64").features


def test_current_machine_has_its_instruction_set():
    here = this_machine()
    assert parse("", platform.machine()).features <= here.features
    assert isinstance(here, Machine)
    assert here.lacks(here.features) == []
