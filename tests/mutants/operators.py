"""The mutants of a module: small changes of its source, one at a time, each of which some test should notice.

They are what slips in: a bound that is off by one, a condition that is turned round or half of it dropped, a guard, a
call or an assignment left out, `and` for `or`, a result lost, an error that is not dealt with. Left alone is what no
test ought to know: the words of errors and logs, types, and at the top of a module plain figures (a limit that is one
more is another limit).

Source is changed where the node stands and nowhere else.
"""

from __future__ import annotations

import ast
import copy
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
EXITS = (ast.Raise, ast.Return, ast.Continue, ast.Break)
CONDITIONS = (ast.Compare, ast.BoolOp)
FIGURES = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.Tuple, ast.operator, ast.unaryop, ast.Load)
TYPES = ("annotation", "returns", "decorator_list", "bases", "type_params")
LOGS = ("log", "logger", "logging", "warnings")
MOST_SHOWN = 110


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change. where: the function or class that it is in. before, after: in one line each. nth: of those of this
    place that read the same. scope: a checksum of that function. start, end: the bytes of the source that `text` takes
    the place of."""

    where: str
    operator: str
    line: int
    before: str
    after: str
    nth: int
    scope: str
    start: int
    end: int
    text: str

    @property
    def name(self) -> str:
        """What tells it from the others of its module, whatever lines are added elsewhere."""
        return f"{self.where}: {self.before} -> {self.after}{f' (again, {self.nth})' if self.nth else ''}"

    def applied(self, source: str) -> str:
        """The module with this change."""
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()


def mutants(source: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    starts = [0]
    for line in source.encode().split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    found, times, scopes = [], Counter[tuple[str, str, str]](), dict[int, str]()
    tree = ast.parse(source)
    for where, scope, operator, nodes, new in _changes(tree, "", None):
        before, after = "; ".join(map(_shown, nodes)), _shown(new)
        text = ast.unparse(new) if isinstance(new, ast.stmt) else f"({ast.unparse(new)})"
        first, last = nodes[0], nodes[-1]
        start = starts[first.lineno - 1] + first.col_offset
        end = starts[(last.end_lineno or 0) - 1] + (last.end_col_offset or 0)
        nth = times[where, before, after]
        times[where, before, after] += 1
        held = scope or first
        if id(held) not in scopes:
            scopes[id(held)] = f"{zlib.crc32(ast.dump(held).encode()):08x}"
        found.append(Mutant(where, operator, first.lineno, before, after, nth, scopes[id(held)], start, end, text))
    return sorted(found, key=lambda m: (m.line, m.start, m.name))


Node = ast.expr | ast.stmt


def _changes(
    node: ast.AST, where: str, scope: ast.AST | None
) -> Iterator[tuple[str, ast.AST | None, str, list[Node], Node]]:
    """Every change: where, in which function, by which operator, the nodes that it takes the place of, the node that
    takes it."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr) or _logs(node) or _is_figures(node, where):
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        where = f"{where}.{node.name}" if where else node.name
        scope = node if scope is None or isinstance(scope, ast.ClassDef) else scope
    if isinstance(node, ast.expr):
        for operator, new in _of_expression(node):
            yield where, scope, operator, [node], new
    elif isinstance(node, ast.stmt):
        for operator, nodes, new in _of_statement(node, where):
            yield where, scope, operator, nodes, new
    for name, value in ast.iter_fields(node):
        if name not in TYPES:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _changes(child, where, scope)


def _of_expression(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            for other in COMPARISONS[type(op)]:
                new = copy.deepcopy(node)
                new.ops[i] = other()
                yield "comparison", new
    elif isinstance(node, ast.BoolOp):
        yield "and, or", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        for i in range(len(node.values)):
            rest = [*node.values[:i], *node.values[i + 1 :]]
            yield "operand dropped", rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not dropped", node.operand
    elif isinstance(node, ast.Constant):
        for value in _other_constants(node.value):
            yield "constant", ast.Constant(value)
    elif isinstance(node, ast.BinOp) and not _is_text(node.left) and not _is_text(node.right):
        if type(node.op) in ARITHMETIC:
            yield "arithmetic", ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in CALLS:
            yield "call", ast.Call(ast.Name(CALLS[node.func.id]), node.args, node.keywords)
        elif node.func.id == "reversed":
            yield "call", node.args[0]
    elif isinstance(node, ast.IfExp) and not _is_condition(node.test):
        yield "condition", ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)


def _of_statement(node: ast.stmt, where: str) -> Iterator[tuple[str, list[Node], Node]]:
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await) and not _logs(node.value)
    if called or isinstance(node, ast.Delete):
        yield "statement dropped", [node], ast.Pass()
    elif isinstance(node, ast.Assign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        kept = all(isinstance(t, ast.Attribute | ast.Subscript) for target in targets for t in _flat(target))
        if isinstance(node, ast.AugAssign) or (kept and not where.endswith("__init__")):
            yield "statement dropped", [node], ast.Pass()
        if isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC and not _is_text(node.value):
            yield "arithmetic", [node], ast.AugAssign(node.target, ARITHMETIC[type(node.op)](), node.value)
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield "result lost", [node], ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Continue | ast.Break):
        yield "loop", [node], ast.Break() if isinstance(node, ast.Continue) else ast.Continue()
    elif isinstance(node, ast.If | ast.While):
        if not _is_condition(node.test) and not isinstance(node.test, ast.Constant):
            yield "condition", [node.test], ast.UnaryOp(ast.Not(), node.test)
        if isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], EXITS):
            yield "guard dropped", [node], ast.Pass()
    elif isinstance(node, ast.Try):
        for handler in node.handlers:
            if not any(isinstance(statement, ast.Raise) for statement in handler.body):
                yield "error not dealt with", list(handler.body), ast.Raise()


def _other_constants(value: object) -> tuple[object, ...]:
    if isinstance(value, bool):
        return (not value,)
    if type(value) is int:
        return (1,) if value == 0 else (value + 1, value - 1)
    return ()


def _is_condition(test: ast.expr) -> bool:
    """Whether it is turned round by an operator of its own."""
    return isinstance(test, CONDITIONS) or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _logs(node: ast.AST) -> bool:
    """Whether it is a call of a logger."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return isinstance(node.func.value, ast.Name) and node.func.value.id in LOGS


def _is_figures(node: ast.AST, where: str) -> bool:
    """Whether it names figures, at the top of a module."""
    if where or not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return False
    return all(isinstance(part, FIGURES) for part in ast.walk(node.value))


def _flat(target: ast.expr) -> list[ast.expr]:
    return [t for part in target.elts for t in _flat(part)] if isinstance(target, ast.Tuple | ast.List) else [target]


def _shown(node: ast.AST) -> str:
    """In one line, cut."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."
