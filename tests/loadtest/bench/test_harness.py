from loadtest.bench.harness import Row, reason
from loadtest.load.sides import Ratio


def test_goals_are_upper_or_lower_bounds():
    ratio = Ratio(1.0, 0.9, 1.1, 5)
    assert Row("x", ratio, (">=", 1.0)).met
    assert Row("x", ratio, ("<=", 1.0)).met
    assert not Row("x", ratio, (">=", 1.01)).met
    assert not Row("x", ratio, ("<=", 0.99)).met
    assert Row("x", ratio).met is None


def test_refusal_reason_is_its_last_line_without_the_box():
    assert reason(Exception("exit code 2\n╭─ Error ─╮\n│ No such option: --compute │\n╰────╯")) == (
        "No such option: --compute"
    )
    assert reason(ValueError()) == "ValueError"
