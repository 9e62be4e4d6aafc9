"""Build DeepRec Processor's C interface, which the extension `deeprec` has.

python -m freshet_serving.processor.capi libfreshet.so
"""

from __future__ import annotations

import sys

from freshet_serving.processor.ports import ENGINE, missing


def main() -> int:
    build = ENGINE.only("interface_builder")
    if build is None:
        print(missing("the C interface", "deeprec"), file=sys.stderr)
        return 1
    code: int = build()
    return code


if __name__ == "__main__":
    sys.exit(main())
