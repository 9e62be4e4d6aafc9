"""Where modules of serving, loadtest and freshet_serving are tested that have no test file of their own name.

tests/test_found.py reads it.
"""

TESTED_BY: dict[str, tuple[str, ...]] = {}

SEAMS: dict[str, str] = {}
