"""Which definitions of a tree need which: by the names that they use, what their children run, the files they read.

A node is a part of a file, "path::name". "path" alone is the whole file, "path::" what runs with every import of it,
and "path::*" the file itself, which some only start.

Invariants
- A node needs another if a change of the other can change what it does; a test file needs all that is reached so. Where
  the code does not say, the answer is the larger one: a name that is not found leads to its whole file.
- An import runs the modules that it passes, their __init__ among them: what runs with every import of these is needed.
  All else of them is needed only by who uses it, so a name that an __init__ passes on leads to where it is defined.
- Extensions are found by their folders: who asks a port for what they offer of a kind (`ENGINE.offers("observers")`)
  needs what every extension offers of it, and what an import of any extension runs. A Processor and a server ask so.
- A test needs the fixtures that it names, of the conftest.py of its folder and those above, and what these use always.
- A file that is not Python is needed by the tests of the structure (tests/test_*.py), by all that name it, a folder of
  it or a pattern of its name, and by what lies beside it. What configures pytest or the environment is needed by all.

Costs: to parse 2,000 files takes some seconds; files are parsed when they are reached.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import PurePosixPath

from tests.affected.facts import ALWAYS, OFFER, Facts, Part
from tests.support.module_names import FLOORS, own_name

ENVIRONMENT = frozenset({"pyproject.toml", "constraints.txt"})
EXTENSIONS = ("processor/extensions/", "serving/extensions/")
COMMANDS = "serving/commands/cli.py"
OTHER_COMMANDS = "serving/commands/extension_commands.py"
INSTALLED = ("freshet_serving/", "serving/", "models/", "compiler/", "processor/")


class Tree:
    """The files of one tree.

    paths: of its Python files. load: reads the facts of one of them. others: files that are not Python.
    finds_extensions: whether who asks for what extensions offer needs it.
    """

    def __init__(
        self,
        paths: Iterable[str],
        load: Callable[[str], Facts],
        others: Iterable[str] = (),
        finds_extensions: bool = True,
    ) -> None:
        self.paths = sorted(paths)
        self.others = sorted(others)
        self._load = load
        self._facts: dict[str, Facts] = {}
        self._all = set(self.paths)
        self._modules = {name_of(path): path for path in self.paths}
        self._tops = {name.partition(".")[0] for name in self._modules}
        self._needs: dict[str, set[str]] = {}
        self._dotted: dict[str, set[str]] = {}
        inits = [path for path in self.paths if finds_extensions and path.endswith("/__init__.py")]
        self._extensions = [path for path in inits if is_of_extension(path) and path.count("/") == 3]

    @cached_property
    def tests(self) -> list[str]:
        """Every file that pytest collects."""
        return [path for path in self.paths if is_test(path)]

    def facts(self, path: str) -> Facts:
        """Return the facts of a file."""
        if path not in self._facts:
            self._facts[path] = self._load(path)
        return self._facts[path]

    def needs(self, node: str) -> set[str]:
        """Return the nodes that a node needs by itself."""
        if node not in self._needs:
            self._needs[node] = self._direct(node)
        return self._needs[node]

    def closure(self, start: Iterable[str]) -> set[str]:
        """Return the nodes that are reached from others, with them."""
        seen = set(start)
        left = list(seen)
        while left:
            new = self.needs(left.pop()) - seen
            seen |= new
            left.extend(new)
        return seen

    @cached_property
    def needed_by(self) -> Mapping[str, set[str]]:
        """Each node -> the nodes that need it by themselves, of all that tests reach."""
        back: dict[str, set[str]] = {}
        for node in self.closure(self.tests):
            for other in self.needs(node):
                back.setdefault(other, set()).add(node)
        return back

    def affected(self, changed: Iterable[str]) -> list[str]:
        """
        Return the tests that a change can break.

        Args:
            changed: nodes of Python files, and paths of other files, that were changed, added or removed.
        """
        changed = set(changed)
        if changed & ENVIRONMENT:
            return self.tests
        start = set(changed)
        for node in changed:
            path, colons, part = node.partition("::")
            if not is_python(node):
                start |= self.named_by(node)
            elif colons:
                start.add(f"{path}::*")
            if part == OFFER and path in self._extensions:
                start |= {f"{path}::{name}" for name in self.facts(path).parts if name.startswith(f"{OFFER}.")}
        seen = set(start)
        left = list(start)
        while left:
            new = self.needed_by.get(left.pop(), set()) - seen
            seen |= new
            left.extend(new)
        return [test for test in self.tests if test in seen or (changed and is_of_structure(test))]

    def named_by(self, path: str) -> set[str]:
        """Return the nodes that may read a file which is not Python."""
        file = PurePosixPath(path)
        folder, top = path.rpartition("/")[0], file.parts[0]
        words = {file.name, path, *map(str, file.parents)} - {".", "tests", *FLOORS}
        # What is installed reads only what is installed with it.
        readers = [reader for reader in self.paths if top in FLOORS or not reader.startswith(INSTALLED)]
        nodes = set()
        for reader in readers:
            parts = self.facts(reader).parts
            if folder and reader.rpartition("/")[0] == folder:
                nodes |= {reader, *(f"{reader}::{name}" for name in parts)}
            for name, part in parts.items():
                # A folder is named by its path, or by its last name where the first one stands beside it.
                last = {file.parent.name} if top in part.texts else set()
                if any(_names(text, file.name, words | last) for text in part.texts):
                    nodes.add(f"{reader}::{name}")
        return nodes

    def _direct(self, node: str) -> set[str]:
        path, _, name = node.partition("::")
        if name == "*" or path not in self._all:
            return set()
        if "::" not in node:
            return self._of_file(path)
        part = self.facts(path).parts.get(name)
        needed = self._of_part(path, part) if part is not None else {path} if name else set()
        if name != ALWAYS:
            needed.add(f"{path}::{ALWAYS}")
        else:
            needed |= self._of_import(path)
        return needed - {node}

    def _of_file(self, path: str) -> set[str]:
        """Return the parts of a file and, of a test's, what pytest adds."""
        needed = {f"{path}::{name}" for name in self.facts(path).parts} | {f"{path}::*"}
        if path.startswith("tests/"):
            needed |= {f"{conftest}::{ALWAYS}" for conftest in self._conftests(path)}
        return needed

    def _of_import(self, path: str) -> set[str]:
        """Return what runs with every import of a file: the packages above it and what it imports."""
        folders = PurePosixPath(path).parents
        needed = {f"{folder}/__init__.py::{ALWAYS}" for folder in folders if f"{folder}/__init__.py" in self._all}
        for dotted in self.facts(path).parts[ALWAYS].imports:
            module = self.module(own_name(dotted))
            if module:
                needed.add(f"{module}::{ALWAYS}")
        return needed

    def _of_part(self, path: str, part: Part, extended: bool = True) -> set[str]:
        facts = self.facts(path)
        needed: set[str] = set()
        for port, kind, name in part.extended if extended else ():
            needed |= self._offered(port, kind, name)
        for use in part.uses:
            needed |= self._use(path, facts, part, use)
        if path.startswith("tests/"):
            for name in part.asked:
                needed |= self._use(path, facts, part, name) or self._fixture(path, name)
        if part is not facts.parts[ALWAYS]:
            # An import inside a function runs a module.
            needed |= {f"{module}::{ALWAYS}" for dotted in part.imports if (module := self.module(own_name(dotted)))}
        for dotted in part.names:
            needed |= self._resolve(dotted)
        for package in part.whole:
            folder = own_name(package).replace(".", "/")
            needed |= {other for other in self.paths if other.rpartition("/")[0] == folder}
        for module, argument in part.started:
            needed |= self._start(module, {argument} if argument else self._words_beside(path))
        return needed

    def _offered(self, port: str, kind: str, name: str) -> set[str]:
        """Return what extensions offer of a kind under a name, under any if it is empty; all of them are imported: a
        server's port imports those of the engine as well."""
        needed: set[str] = set()
        of_engine, of_server = EXTENSIONS
        for path in self._extensions:
            if port == "ENGINE" and path.startswith(of_server):
                continue
            parts = self.facts(path).parts
            needed |= {f"{path}::{ALWAYS}", *(f"{path}::{part}" for part in parts if part == "REQUIRES")}
            if port == "SERVER" and path.startswith(of_engine):
                continue
            if kind == "*":
                needed.add(path)
            elif kind:
                needed |= {
                    f"{path}::{part}"
                    for part in parts
                    if part.startswith(f"{OFFER}.{kind}.") and (not name or part.endswith((f".{name}", ".")))
                }
        return needed

    def _use(self, path: str, facts: Facts, part: Part, use: str) -> set[str]:
        """Return what a name leads to that is written in a part, with attributes after it."""
        head, _, rest = use.partition(".")
        needed = {f"{path}::{head}"} if head in facts.parts else set()
        for scope in (part, facts.parts[ALWAYS]):
            if head in scope.bound:
                origin = scope.bound[head]
                return needed | self._resolve(f"{origin}.{rest}" if rest else origin)
            if head in scope.packages:
                return needed | self._resolve(use)
        return needed

    def _resolve(self, dotted: str) -> set[str]:
        """Return what an absolute dotted name leads to: a module's whole file, or where the name is defined."""
        dotted = own_name(dotted)
        if dotted.partition(".")[0] not in self._tops:
            return set()
        if dotted not in self._dotted:
            # A circle of names leads nowhere.
            self._dotted[dotted] = set()
            self._dotted[dotted] = self._lookup(dotted)
        return self._dotted[dotted]

    def _lookup(self, dotted: str) -> set[str]:
        module, rest = dotted, ""
        while module and module not in self._modules:
            module, _, last = module.rpartition(".")
            rest = f"{last}.{rest}" if rest else last
        if not module:
            return set()
        path = self._modules[module]
        if not rest:
            return {path}
        name, _, rest = rest.partition(".")
        facts = self.facts(path)
        bound = facts.parts[ALWAYS].bound
        if name in facts.parts:
            return {f"{path}::{name}"}
        if name in bound or ("__getattr__" in facts.parts and name in facts.typed):
            origin = bound.get(name) or facts.typed[name]
            return {f"{path}::{ALWAYS}"} | self._resolve(f"{origin}.{rest}" if rest else origin)
        return {path, f"{path}::{name}"}

    def module(self, dotted: str) -> str:
        """Return the file of the longest part of a dotted name that is a module; empty if it is none of this tree."""
        if dotted.partition(".")[0] not in self._tops:
            return ""
        while dotted and dotted not in self._modules:
            dotted = dotted.rpartition(".")[0]
        return self._modules.get(dotted, "")

    def _conftests(self, path: str) -> list[str]:
        """Return the conftest.py of a file's folder and of those above, the nearest first."""
        return [
            f"{folder}/conftest.py" for folder in PurePosixPath(path).parents if f"{folder}/conftest.py" in self._all
        ]

    def _fixture(self, path: str, name: str) -> set[str]:
        """Return the fixture of a name that a test can use."""
        for conftest in self._conftests(path):
            facts = self.facts(conftest)
            if conftest != path and name in facts.parts:
                return {f"{conftest}::{name}"}
            if conftest != path and name in facts.parts[ALWAYS].bound:
                return self._resolve(facts.parts[ALWAYS].bound[name])
        return set()

    def _start(self, module: str, words: set[str]) -> set[str]:
        """Return what a child needs that runs a module; of ours, only the commands of these words, if it runs some."""
        base = own_name(module)
        if base == "freshet_serving" and COMMANDS in self._all:
            bound = self.facts(COMMANDS).parts[ALWAYS].bound
            names = (f"{word.replace('-', '_')}{ending}" for word in words for ending in ("", "_command", "_app"))
            commands = [self._resolve(bound[name]) for name in names if name in bound]
            offers = {f"{OFFER}.commands.{word}" for word in words}
            for path in self._extensions:
                commands += [{f"{path}::{part}"} for part in offers & self.facts(path).parts.keys()]
            if commands:
                return self._way_to_commands.union(*commands)
        path = self._modules.get(f"{base}.__main__") or self._modules.get(base)
        return {path} if path else set()

    def _words_beside(self, path: str) -> set[str]:
        """Return the strings of a product file's room: one that starts a command has its word there, if not beside it.
        Helpers of tests are told the word from anywhere."""
        if path.startswith(("tests/", "loadtest/")):
            return set()
        folder = path.rpartition("/")[0]
        beside = [other for other in self.paths if other.rpartition("/")[0] == folder]
        return {text for other in beside for part in self.facts(other).parts.values() for text in part.texts}

    @cached_property
    def _way_to_commands(self) -> set[str]:
        """Return what every command of ours needs: what runs it, and none of the others."""
        needed, seen = {f"{COMMANDS}::*", f"{OTHER_COMMANDS}::*"}, {f"{COMMANDS}::"}
        left = [f"{COMMANDS}::main"]
        while left:
            node = left.pop()
            path, _, name = node.partition("::")
            if path not in (COMMANDS, OTHER_COMMANDS):
                needed.add(node)
            elif node not in seen and name in self.facts(path).parts:
                seen.add(node)
                needed |= self._of_import(path) if node == f"{OTHER_COMMANDS}::" else set()
                left.extend(self._of_part(path, self.facts(path).parts[name], extended=False))
        return needed


def _names(text: str, name: str, words: set[str]) -> bool:
    """Return whether a string may stand for a file: a word of its path, the end of it, or a pattern of its name."""
    if text.strip("/") in words or text.endswith(f"/{name}"):
        return True
    last = text.rpartition("/")[2]
    return "*" in last and len(last.strip("*")) > 1 and fnmatch.fnmatch(name, last)


def name_of(path: str) -> str:
    """Return a module's dotted name without freshet_serving; a package's is its folder's."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def is_python(node: str) -> bool:
    """Return whether a node is a Python file or of one."""
    return node.partition("::")[0].endswith(".py")


def is_test(path: str) -> bool:
    """Return whether pytest collects a file."""
    return path.startswith("tests/") and PurePosixPath(path).name.startswith("test_")


def is_of_structure(path: str) -> bool:
    """Return whether a test reads the whole tree: it lies at the top of tests/."""
    return is_test(path) and path.count("/") == 1


def is_of_extension(node: str) -> bool:
    """Return whether a node or a file lies in the folder of an extension of the engine or the server."""
    return node.startswith(EXTENSIONS) and node.count("/") > 2
