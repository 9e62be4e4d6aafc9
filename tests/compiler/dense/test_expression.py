import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.compiler.dense.expression import (
    MAX_DEPTH,
    MAX_LENGTH,
    MAX_TOKENS,
    Constant,
    Name,
    Operation,
    parse,
)
from freshet_serving.processor.errors import BadInput

OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "**": lambda a, b: a**b,
    "neg": lambda a: -a,
    "abs": abs,
    "exp": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
    "sigmoid": lambda a: 1 / (1 + math.exp(-a)),
    "min": min,
    "max": max,
}


def value(parsed, names, tree=None):
    tree = parsed.tree if tree is None else tree
    if isinstance(tree, Name):
        return names[tree.name]
    if isinstance(tree, Constant):
        return parsed.constants[tree.place]
    return OPERATIONS[tree.what](*(value(parsed, names, operand) for operand in tree.operands))


A, B, C = 1.25, 0.75, -2.5


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a * b ** 0.5 * c", A * B**0.5 * C),
        ("a - b - c", A - B - C),
        ("a / b / c", A / B / C),
        ("2 ** 3 ** 2", 2**3**2),
        ("-a ** 2", -(A**2)),
        ("a ** -2", A**-2),
        ("a ** -b ** 2", A ** -(B**2)),
        ("-2 * -a + +3", -2 * -A + 3),
        ("(a + b) * (c - 1e-2)", (A + B) * (C - 1e-2)),
        ("max(a, min(b, 3.) * .5) - abs(c)", max(A, min(B, 3.0) * 0.5) - abs(C)),
        ("log(exp(a)) + sqrt(b * b)", A + B),
        ("sigmoid(0 * a)", 0.5),
        ("2 - -3", 5),
        ("  a*b  ", A * B),
    ],
)
def test_expression_evaluates_like_python(text, wanted):
    assert value(parse(text, "score"), {"a": A, "b": B, "c": C}) == pytest.approx(wanted, rel=1e-12)


def test_names_and_constants_are_separated_from_the_structure():
    parsed = parse("0.3 * ctr ** 2 - sigmoid(cvr.v2) * -4 + ctr", "score")

    assert parsed.constants == (0.3, 2.0, -4.0)
    assert parsed.names == ("ctr", "cvr.v2")
    assert parsed.tree == parse("9 * ctr ** 8 - sigmoid(cvr.v2) * 7 + ctr", "score").tree
    assert parsed.tree != parse("0.3 * ctr ** 2 + sigmoid(cvr.v2) * -4 + ctr", "score").tree
    assert parse("a", "s").tree == Name("a")
    assert parse("a + 1", "s").tree == Operation("+", (Name("a"), Constant(0)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "score: expected a number, a name or .* at the end"),
        ("a *", "expected .* at the end, got nothing"),
        ("a b", "expected an operator or the end at position 3, got 'b'"),
        ("(a", r"expected '\)' at the end"),
        ("a)", r"expected an operator or the end at position 2, got '\)'"),
        ("__import__('os')", 'expected .* at position 12, got "\'"'),
        ("open(a)", "expected one of abs, exp, log, .*, got 'open'"),
        ("max(a)", "expected 2 operands of max, got 1"),
        ("a.real if b else c", "expected an operator or the end at position 8, got 'if'"),
        ("a[0]", r"expected a number, a name or an operator at position 2, got '\['"),
        ("a // b", "expected .* at position 4, got '/'"),
        ("1e999", "expected a number within float32"),
        ("1e39", "expected a number within float32"),
        ("a\0", "expected .* at position 2"),
        ("ä", "expected .* at position 1"),
        ("a" * (MAX_LENGTH + 1), f"expected at most {MAX_LENGTH} characters"),
        ("(" * (MAX_DEPTH + 1) + "a", f"expected at most {MAX_DEPTH} levels of nesting"),
        ("a**" * (MAX_DEPTH + 1) + "a", f"expected at most {MAX_DEPTH} levels of nesting"),
        ("+".join("a" * MAX_TOKENS), f"expected at most {MAX_TOKENS} tokens"),
    ],
)
def test_malformed_expression_is_refused_with_its_position(text, message):
    with pytest.raises(BadInput, match=message):
        parse(text, "score")


@given(st.text(alphabet="ab.019e+-*/(), maxsqrt", max_size=60))
def test_arbitrary_text_is_an_expression_or_refused(text):
    try:
        parsed = parse(text, "score")
    except BadInput:
        return
    assert set(parsed.names) <= set(value_names(parsed.tree))
    assert all(math.isfinite(constant) for constant in parsed.constants)


def value_names(tree):
    if isinstance(tree, Name):
        return [tree.name]
    return [n for o in tree.operands for n in value_names(o)] if isinstance(tree, Operation) else []
