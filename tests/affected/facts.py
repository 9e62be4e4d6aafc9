"""What one Python file defines, and what each definition uses, read from its source. Pure: same source, same facts.

A part is what one name of a module's top level is bound to: a function, a class, a constant. The part ALWAYS is what
runs with every import. Imports count wherever they stand, in functions too; what stands under TYPE_CHECKING does not
run and does not count. What a child process will import is read from strings: a module's dotted name, `-m module`, the
source of a `python -c`.

Rejected: whole files in place of parts. A helper or a constant of a file then stands for all that the file imports, and
most changes of the engine affect three quarters of the tests. Recording what is imported while tests run: it has to run
them all before it can leave any out, and misses what a failed test did not reach.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

TOPS = "freshet_serving|tests|loadtest|generators"
DOTTED = re.compile(rf"(?<![\w./-])(?:{TOPS})(?:\.[A-Za-z_]\w*)+(\.?)")
STARTED = re.compile(r"(?<!\S)-m\s+([A-Za-z_][\w.]*)(?:\s+([a-z][a-z-]*))?")
FROM = re.compile(rf"from\s+((?:{TOPS})[\w.]*)\s+import\s+\(?([\w, \n]+)")
PATH = re.compile(r"[\w.*?/+ -]{2,120}")
BY_NAME = re.compile(
    r"import_module|__import__|subprocess|Popen|sys\.executable|setattr|find_spec|\bpatch\(|run_module"
)
"""A file with none of these makes nothing of a module's dotted name."""
BY_TEXT = re.compile(r"getfixturevalue|usefixtures")
"""A file with none of these asks for no fixture by a string."""
ALWAYS, AS_MAIN = "", "__main__"
OFFER = "EXTENSION"
"""The part that says what an extension offers; OFFER.KIND.NAME is what it offers under one name (empty: under any)."""
PORTS = ("ENGINE", "SERVER")
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LOOPS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
HOLE = "x"
"""Stands for what an f-string fills in."""


@dataclass(slots=True)
class Part:
    """What one definition uses.

    uses: dotted names as they are written, without those of local variables. asked: names that may be fixtures.
    imports: dotted names imported inside it. bound: name here -> the dotted name that it was imported as. packages:
    first words of dotted names that are imported as they are. names: dotted names that its strings hold. whole:
    packages of which it imports any module by name. started: (module, first word) of its children. texts: strings that
    may be a path, part of one, a pattern. extended: (port, kind, name) of what it asks extensions for; "*" is any kind,
    an empty name any.
    """

    uses: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    imports: set[str] = field(default_factory=set)
    bound: dict[str, str] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)
    started: set[tuple[str, str]] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    extended: set[tuple[str, str, str]] = field(default_factory=set)


@dataclass(slots=True)
class Facts:
    """Of one file. parts: by name. typed: name -> dotted name that only type checkers import."""

    parts: dict[str, Part] = field(default_factory=dict)
    typed: dict[str, str] = field(default_factory=dict)


def facts_of(source: str, package: str = "") -> Facts:
    """
    Read a file's facts.

    Args:
        package: dotted name of the package that the file lies in.
    """
    tree, facts = _parsed(source), Facts({ALWAYS: Part()})
    sought = _Sought(BY_NAME.search(source) is not None, BY_TEXT.search(source) is not None)
    for name, node in _top_level(tree.body):
        _Reader(facts, facts.parts.setdefault(name, Part()), package, sought).read(node)
        if name == OFFER and isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            for offered, value in _offers(node.value):
                _Reader(facts, facts.parts.setdefault(offered, Part()), package, sought).read(value)
    for node in tree.body:
        if isinstance(node, SCOPES) and _registers(node, facts):
            facts.parts[ALWAYS].uses.add(node.name)
    return facts


def codes_of(source: str) -> dict[str, str]:
    """Return what each part does, as text that words and places do not change: no docstring, comment, __all__, import.
    Imports count by what they lead to."""
    codes: dict[str, str] = {}
    for name, node in _top_level(_parsed(source).body):
        if isinstance(node, ast.Import | ast.ImportFrom) or name == "__all__" or _is_text(node):
            continue
        for inner in ast.walk(node):
            if isinstance(inner, SCOPES):
                inner.body = [part for part in inner.body if not _is_text(part)]
        codes[name] = codes.get(name, "") + ast.dump(node)
    return codes


def _parsed(source: str) -> ast.Module:
    with warnings.catch_warnings():
        # Sources of children hold backslashes that are none of ours to judge.
        warnings.simplefilter("ignore")
        return ast.parse(source)


def _top_level(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """Yield (part, node) of all that a module's top level does; a node of several names once for each."""
    for node in body:
        if isinstance(node, SCOPES):
            yield node.name, node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [inner.id for target in targets for inner in _elements(target) if isinstance(inner, ast.Name)]
            for name in names or [ALWAYS]:
                yield name, node
        elif isinstance(node, ast.If) and _is_main(node):
            yield AS_MAIN, node
        elif isinstance(node, ast.If) and not _is_typing(node):
            yield ALWAYS, node.test
            yield from _top_level(node.body + node.orelse)
        elif isinstance(node, ast.Try):
            yield from _top_level(node.body + [part for handler in node.handlers for part in handler.body])
            yield from _top_level(node.orelse + node.finalbody)
        else:
            yield ALWAYS, node
            # Names that loops and the like bind are there once these have run, which is always.
            yield from ((inner.id, ast.Pass()) for inner in ast.walk(node) if _is_bound(inner))


def _elements(target: ast.expr) -> list[ast.expr]:
    return target.elts if isinstance(target, ast.Tuple | ast.List) else [target]


def _is_bound(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _is_main(node: ast.If) -> bool:
    return isinstance(node.test, ast.Compare) and getattr(node.test.left, "id", "") == "__name__"


def _is_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in (
        getattr(node.test, "id", ""),
        getattr(node.test, "attr", ""),
    )


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _registers(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, facts: Facts) -> bool:
    """Return whether a definition is found otherwise than by its name: a decorator of this tree may note it, pytest
    calls hooks and fixtures that nobody names."""
    if node.name.startswith("pytest_"):
        return True
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and any(keyword.arg == "autouse" for keyword in decorator.keywords):
            return True
        root = decorator
        while isinstance(root, ast.Call | ast.Attribute):
            root = root.func if isinstance(root, ast.Call) else root.value
        name = getattr(root, "id", "")
        if name in facts.parts or re.match(rf"(?:{TOPS})\b", facts.parts[ALWAYS].bound.get(name, "")):
            return True
    return False


@dataclass(frozen=True, slots=True)
class _Sought:
    """What strings of a file may name, besides paths. modules: by dotted names. fixtures: by their names."""

    modules: bool
    fixtures: bool


class _Reader:
    """Adds what a node uses to a part."""

    def __init__(self, facts: Facts, part: Part, package: str, sought: _Sought) -> None:
        self._facts, self._part, self._package, self._sought = facts, part, package, sought

    def read(self, node: ast.AST) -> None:
        """Add a node and all beneath it."""
        method = _READERS.get(node.__class__)
        if method is not None and not method(self, node):
            return
        for name in node._fields:
            value = getattr(node, name, None)
            for child in value if isinstance(value, list) else (value,):
                if isinstance(child, ast.AST) and child._fields:
                    self.read(child)

    def _import(self, node: ast.Import) -> bool:
        for alias in node.names:
            # Without `as`, the name is the first word, and what is used is written in full.
            self._part.bound[alias.asname or alias.name] = alias.name
            if not alias.asname and "." in alias.name:
                self._part.packages.add(alias.name.partition(".")[0])
            self._part.imports.add(alias.name)
        return False

    def _import_from(self, node: ast.ImportFrom) -> bool:
        origins = _origins(node)
        self._part.bound.update(origins)
        self._part.imports.update(origins.values())
        return False

    def _if(self, node: ast.If) -> bool:
        if not _is_typing(node):
            return True
        for inner in node.body:
            if isinstance(inner, ast.ImportFrom):
                self._facts.typed.update(_origins(inner))
        for inner in node.orelse:
            self.read(inner)
        return False

    def _function(self, node: ast.FunctionDef) -> bool:
        arguments = node.args
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        for argument in parameters:
            self._annotation(argument.annotation)
        if node.decorator_list or node.name.startswith("test"):
            # What pytest fills in.
            self._part.asked.update(argument.arg for argument in parameters)
        self._annotation(node.returns)
        for child in (*node.decorator_list, *arguments.defaults, *filter(None, arguments.kw_defaults)):
            self.read(child)
        self._scope(node.body, _locals(node))
        return False

    def _lambda(self, node: ast.Lambda) -> bool:
        for child in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.read(child)
        self._scope([node.body], _locals(node))
        return False

    def _loop(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> bool:
        """Add a comprehension, whose first iterable is read outside of it."""
        self.read(node.generators[0].iter)
        inside = [child for child in ast.iter_child_nodes(node) if child is not node.generators[0]]
        first = node.generators[0]
        targets = {
            inner.id for loop in node.generators for inner in ast.walk(loop.target) if isinstance(inner, ast.Name)
        }
        self._scope([first.target, *first.ifs, *inside], targets)
        return False

    def _scope(self, nodes: list[Any], local: set[str]) -> None:
        """Add nodes of which some names are local variables, which lead nowhere."""
        outside, self._part.uses = self._part.uses, set()
        for node in nodes:
            self.read(node)
        self._part.uses = outside | {use for use in self._part.uses if use.partition(".")[0] not in local}

    def _class(self, node: ast.ClassDef) -> bool:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.AnnAssign):
                # A field, which may be made of what a file holds by its type.
                self.read(child.annotation)
            self.read(child)
        return False

    def _declaration(self, node: ast.AnnAssign) -> bool:
        self._annotation(node.annotation)
        for child in (node.target, node.value):
            if child is not None:
                self.read(child)
        return False

    def _annotation(self, node: ast.expr | None) -> None:
        """Add an annotation that calls something: typer reads its options there. Types alone are not evaluated."""
        if node is not None and any(isinstance(inner, ast.Call) for inner in ast.walk(node)):
            self.read(node)

    def _name(self, node: ast.Name) -> bool:
        if isinstance(node.ctx, ast.Load):
            self._part.uses.add(node.id)
        return False

    def _attribute(self, node: ast.Attribute) -> bool:
        names, root = [node.attr], node.value
        while isinstance(root, ast.Attribute):
            names.append(root.attr)
            root = root.value
        if not isinstance(root, ast.Name):
            return True
        self._part.uses.add(".".join([root.id, *reversed(names)]))
        return False

    def _expression(self, node: ast.Expr) -> bool:
        return not _is_text(node)

    def _sequence(self, node: ast.List | ast.Tuple) -> bool:
        self._start(node.elts)
        return True

    def _call(self, node: ast.Call) -> bool:
        self._start(node.args)
        port = node.func.value if isinstance(node.func, ast.Attribute) else None
        if isinstance(port, ast.Name) and port.id in PORTS:
            kind, name = [*map(_text, node.args), "", ""][:2]
            self._part.extended.add((port.id, kind or ("*" if node.args else ""), name))
        if getattr(node.func, "attr", "") == "with_name" and [_text(argument) for argument in node.args] == ["freshet"]:
            # The installed command.
            self._part.started.add(("freshet_serving", ""))
        return True

    def _joined(self, node: ast.JoinedStr) -> bool:
        parts = node.values
        first = getattr(getattr(parts[0], "value", None), "id", "") if parts else ""
        if first == "__package__" and len(parts) > 1 and _text(parts[1]) == ".":
            self._part.whole.add(self._package)
        for part, after in zip(parts, parts[1:]):
            match = DOTTED.fullmatch(_text(part))
            if match and match[1] and not isinstance(after, ast.Constant):
                self._part.whole.add(match[0][:-1])
        self._read_text("".join(_text(part) or HOLE for part in parts))
        for part in parts:
            if isinstance(part, ast.FormattedValue):
                self.read(part.value)
            else:
                self._part.texts.update(word for word in _text(part).split("/") if PATH.fullmatch(word))
        return False

    def _constant(self, node: ast.Constant) -> bool:
        if isinstance(node.value, str):
            self._read_text(node.value)
        return False

    def _start(self, elements: list[ast.expr]) -> None:
        """Note `-m module argument` in a list of arguments."""
        texts = [_text(element) for element in elements]
        for option, module, argument in zip(texts, texts[1:], [*texts[2:], ""]):
            if option == "-m" and module:
                self._part.started.add((module, argument))

    def _read_text(self, text: str) -> None:
        """Note what a string names."""
        if PATH.fullmatch(text):
            self._part.texts.add(text)
        if self._sought.fixtures and text.isidentifier():
            self._part.asked.add(text)
        if "bin/freshet" in text:
            self._part.started.add(("freshet_serving", ""))
        if "-m " in text:
            self._part.started.update((match[1], match[2] or "") for match in STARTED.finditer(text))
        if not re.search(TOPS, text):
            return
        if self._sought.modules:
            self._part.names.update(match[0].rstrip(".") for match in DOTTED.finditer(text))
        if "import" in text and not self._read_code(text):
            for match in FROM.finditer(text):
                self._part.names.update(f"{match[1]}.{name}" for name in re.findall(r"\w+", match[2]))

    def _read_code(self, text: str) -> bool:
        """Note what the source of a child imports; False if the text is none."""
        try:
            tree = _parsed(textwrap.dedent(text))
        except (SyntaxError, ValueError, RecursionError):
            return False
        child = Part()
        _Reader(Facts(), child, self._package, self._sought).read(tree)
        self._part.names |= child.names | child.imports
        self._part.started |= child.started
        self._part.whole |= child.whole
        return True


_READERS = {
    ast.Import: _Reader._import,
    ast.ImportFrom: _Reader._import_from,
    ast.If: _Reader._if,
    ast.FunctionDef: _Reader._function,
    ast.AsyncFunctionDef: _Reader._function,
    ast.Lambda: _Reader._lambda,
    **dict.fromkeys(LOOPS, _Reader._loop),
    ast.ClassDef: _Reader._class,
    ast.AnnAssign: _Reader._declaration,
    ast.Name: _Reader._name,
    ast.Attribute: _Reader._attribute,
    ast.Expr: _Reader._expression,
    ast.List: _Reader._sequence,
    ast.Tuple: _Reader._sequence,
    ast.Call: _Reader._call,
    ast.JoinedStr: _Reader._joined,
    ast.Constant: _Reader._constant,
}


def _offers(call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """Yield (part, value) of each thing that an extension offers."""
    for keyword in call.keywords:
        names = [_text(key) for key in keyword.value.keys if key] if isinstance(keyword.value, ast.Dict) else []
        if isinstance(keyword.value, ast.Dict) and all(names) and len(names) == len(keyword.value.values):
            yield from ((f"{OFFER}.{keyword.arg}.{name}", value) for name, value in zip(names, keyword.value.values))
        else:
            yield f"{OFFER}.{keyword.arg}.", keyword.value


def _locals(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    """Return the local variables of a function: parameters and all that it binds, but for imports."""
    arguments = function.args
    several = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    names = {argument.arg for argument in several if argument is not None}
    shared: set[str] = set()
    left: list[ast.AST] = list(function.body) if isinstance(function.body, list) else []
    while left:
        node = left.pop()
        if isinstance(node, ast.Global):
            shared.update(node.names)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            shared.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, (ast.ExceptHandler, *SCOPES)) and node.name:
            names.add(node.name)
        elif _is_bound(node):
            names.add(node.id)  # type: ignore[attr-defined]
        if not isinstance(node, (*SCOPES, *FUNCTIONS, *LOOPS)):
            left.extend(ast.iter_child_nodes(node))
    return names - shared


def _origins(node: ast.ImportFrom) -> dict[str, str]:
    """Return the name that each part of an import is bound to -> the dotted name that it comes from."""
    if node.level or not node.module:
        return {}
    return {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}


def _text(node: ast.AST) -> str:
    """Return a string's value; empty for all else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
