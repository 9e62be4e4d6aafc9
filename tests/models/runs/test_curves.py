import math
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.runs.curves import MOST_POINTS, Curve, curves_svg, key_html

numbers = st.floats(-1e12, 1e12) | st.sampled_from([0.0, 1e-12, math.nan, math.inf, 0.7123])


@settings(max_examples=50)
@given(st.lists(st.lists(st.tuples(numbers, numbers), max_size=20), max_size=8), st.booleans())
def test_picture_contains_all_finite_points(series, diagonal):
    svg = curves_svg([Curve("<a> & b", points) for points in series], "rows", diagonal)
    shown = [p for points in series for p in points if all(map(math.isfinite, p))]
    if not shown:
        assert svg == ""
        return
    root = ElementTree.fromstring(svg)
    circles = root.findall("circle")
    assert len(circles) == len(shown)
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    assert all(0 <= float(c.attrib["cx"]) <= width and 0 <= float(c.attrib["cy"]) <= height for c in circles)
    assert all("<a> & b" in c.find("title").text for c in circles)


def test_many_points_are_averaged_into_few():
    svg = curves_svg([Curve("x", [(n, n % 2) for n in range(10 * MOST_POINTS)])], "rows")
    circles = ElementTree.fromstring(svg).findall("circle")
    assert len(circles) == MOST_POINTS
    assert circles[0].find("title").text == "4.5 rows: x 0.5"


@pytest.mark.parametrize(("high", "told"), [(3e9, "3G"), (2e6, "2M"), (40_000, "40k"), (8, "8"), (1e-5, "1e-05")])
def test_axes_end_at_short_round_numbers(high, told):
    svg = curves_svg([Curve("x", [(0, 0), (high, high)])], "")
    assert told in [text.text.strip() for text in ElementTree.fromstring(svg).findall("text")]


def test_names_are_escaped():
    assert "&lt;b&gt;" in key_html(["<b>"])
