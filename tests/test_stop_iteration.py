"""StopIteration cannot get lost: a future does not hold it, so that whoever waits for it waits for ever."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The client imports nothing of the engine, and has no futures.
MODULES = [
    path
    for floor in ("serving", "processor")
    for path in sorted((ROOT / floor).rglob("*.py"))
    if "client" not in path.relative_to(ROOT).parts
]
# Their work raises an error of TLS or its own error, and gives its failure to a callback.
OWN_THREADS = {"serving/front/offload_executor.py", "serving/http/tls_transport.py"}


def bare_nexts(tree):
    """Calls of next() without a default whose iterable is made in the call: it may be empty, a counter is not."""
    for node in ast.walk(tree):
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "next"
        if called and len(node.args) == 1 and isinstance(node.args[0], (ast.GeneratorExp, ast.Call)):
            yield node


def test_first_of_takes_the_place_of_next_without_a_default():
    sources = {path: source for path in MODULES if "next(" in (source := path.read_text())}
    lines = {path: [node.lineno for node in bare_nexts(ast.parse(source))] for path, source in sources.items()}
    assert {path.relative_to(ROOT).as_posix(): numbers for path, numbers in lines.items() if numbers} == {}


def test_servers_run_what_blocks_with_in_thread():
    lost = re.compile(r"asyncio\.to_thread\(|\.run_in_executor\(")
    there = {p.relative_to(ROOT).as_posix() for p in MODULES if lost.search(p.read_text())}
    assert there - OWN_THREADS == set()
