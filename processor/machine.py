"""This machine's processor: the features that compiled code may need, and names for sets of them.

Machine code crashes on a processor that lacks a feature it was compiled for. So an executable of machine code carries
its builder's full set of features, and is loaded only where that is a subset of this machine's. The instruction set
(x86_64, aarch64) is one of the features. If the system does not report the features, the set holds the instruction set
alone: code that needs more is rejected, which is safe.
"""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
# Features that compilers generate code for; flags of virtualisation, power and security do not affect code.
RELEVANT = re.compile(
    r"sse\d?(_\d)?|ssse3|avx\w*|amx_\w+|fma|f16c|bmi[12]|popcnt|lzcnt|abm|movbe|adx|aes|vaes|pclmulqdq|vpclmulqdq|gfni|sha_ni"
    r"|asimd\w*|neon|sve\w*|sme\w*|bf16|i8mm|fphp|atomics"
)
# Newest first: the levels that targets are named after.
LEVELS = (
    ("amx", "amx_tile"),
    ("avx512-bf16", "avx512_bf16"),
    ("avx512-vnni", "avx512_vnni"),
    ("avx512", "avx512f"),
    ("avx2", "avx2"),
    ("avx", "avx"),
    ("sve", "sve"),
    ("neon", "asimd"),
)
BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16")
"""Any of them: the processor multiplies bfloat16 in hardware. Elsewhere it is emulated, many times slower."""


INT8 = ("avx512_vnni", "avx_vnni", "asimddp", "i8mm")


@dataclass(frozen=True, slots=True)
class Machine:
    features: frozenset[str]
    name: str

    @property
    def target(self) -> str:
        """Short name for people, such as x86_64-avx512-vnni."""
        return target_of(self.features)

    @property
    def bfloat16(self) -> bool:
        return not self.features.isdisjoint(BFLOAT16)

    @property
    def int8(self) -> str:
        """Feature that multiplies uint8 by int8 and adds up four products exactly; "" for none.

        Without it, pairs of products saturate at 16 bits.
        """
        return next((feature for feature in INT8 if feature in self.features), "")

    def lacks(self, features: Iterable[str]) -> list[str]:
        """Return those of `features` that this machine does not have, sorted."""
        return sorted(set(features) - self.features)


def target_of(features: Iterable[str]) -> str:
    """Return the short name of a set of features: the instruction set and its newest level."""
    has = set(features)
    instruction_set = next((f for f in sorted(has) if f in ("x86_64", "aarch64", "arm64", "ppc64le")), "unknown")
    level = next((name for name, feature in LEVELS if feature in has), "")
    return f"{instruction_set}-{level}" if level else instruction_set


@functools.cache
def this_machine() -> Machine:
    """Return the machine that this process runs on; read once."""
    try:
        text = CPUINFO.read_text(errors="replace")
    except OSError:
        text = ""
    return parse(text, platform.machine().lower())


def parse(cpuinfo: str, instruction_set: str) -> Machine:
    """Return the machine of /proc/cpuinfo's text and platform.machine(), with the features that all cores have."""
    instruction_set = {"amd64": "x86_64", "arm64": "aarch64"}.get(instruction_set, instruction_set)
    flags: frozenset[str] | None = None
    name = ""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        key = key.strip().lower()
        if key in ("flags", "features"):
            core_flags = frozenset(flag for flag in value.split() if RELEVANT.fullmatch(flag))
            flags = core_flags if flags is None else flags & core_flags
        elif key == "model name" and not name:
            name = value.strip()[:128]
    features = (flags or frozenset()) | {instruction_set}
    return Machine(features, f"{name or instruction_set} ({target_of(features)})")
