"""This machine's processor: the features that compiled code may need, and names for them.

Machine code runs on a processor that has every feature it was compiled for, and crashes on another. So an executable of
machine code carries the full set of its builder's features, and is only ever loaded where that is a subset of what is
here. The instruction set itself (x86_64, aarch64) is one of the features. Where the system does not say what the
processor has, the set holds the instruction set alone: code from elsewhere that needs more is then refused, which is
safe.
"""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
# What compilers generate code for; flags of virtualisation, power and security say nothing about code.
RELEVANT = re.compile(
    r"sse\d?(_\d)?|ssse3|avx\w*|amx_\w+|fma|f16c|bmi[12]|popcnt|lzcnt|abm|movbe|adx|aes|vaes|pclmulqdq|vpclmulqdq|gfni|sha_ni"
    r"|asimd\w*|neon|sve\w*|sme\w*|bf16|i8mm|fphp|atomics"
)
# The newest first: what a processor is called after.
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
    """features: of the processor, its instruction set among them. name: the model, as the system calls it."""

    features: frozenset[str]
    name: str

    @property
    def target(self) -> str:
        """A short name for people, such as x86_64-avx512-vnni."""
        return target_of(self.features)

    @property
    def bfloat16(self) -> bool:
        return not self.features.isdisjoint(BFLOAT16)

    @property
    def int8(self) -> str:
        """The feature by which it multiplies uint8 by int8 and adds up four at a time, exactly; "" for none. Without,
        pairs of products saturate at 16 bits."""
        return next((feature for feature in INT8 if feature in self.features), "")

    def lacks(self, features: Iterable[str]) -> list[str]:
        """The ones among `features` that this machine does not have, in order."""
        return sorted(set(features) - self.features)


def target_of(features: Iterable[str]) -> str:
    """The short name of a set of features: the instruction set and the newest level of it."""
    has = set(features)
    instruction_set = next((f for f in sorted(has) if f in ("x86_64", "aarch64", "arm64", "ppc64le")), "unknown")
    level = next((name for name, feature in LEVELS if feature in has), "")
    return f"{instruction_set}-{level}" if level else instruction_set


@functools.cache
def this_machine() -> Machine:
    """The machine that this process runs on; read once."""
    try:
        text = CPUINFO.read_text(errors="replace")
    except OSError:
        text = ""
    return parse(text, platform.machine().lower())


def parse(cpuinfo: str, instruction_set: str) -> Machine:
    """The Machine that the text of /proc/cpuinfo describes. Cores may differ: only what all of them have counts."""
    instruction_set = {"amd64": "x86_64", "arm64": "aarch64"}.get(instruction_set, instruction_set)
    flags: frozenset[str] | None = None
    name = ""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        key = key.strip().lower()
        if key in ("flags", "features"):
            found = frozenset(flag for flag in value.split() if RELEVANT.fullmatch(flag))
            flags = found if flags is None else flags & found
        elif key == "model name" and not name:
            name = value.strip()[:128]
    features = (flags or frozenset()) | {instruction_set}
    return Machine(features, f"{name or instruction_set} ({target_of(features)})")
