from xml.etree import ElementTree

from loadtest.reports.svg_chart import MOST_POINTS, Series, chart, legend, thinned

SVG = ElementTree


def drawn(*arguments, **options):
    return SVG.fromstring(chart(*arguments, **options))


def test_chart_has_a_line_per_series_and_delta_marks():
    series = [Series("p50", [(0.5, 10), (1.5, 20)]), Series("p99", [(0.5, 30), (1.5, 40)])]
    svg = drawn(series, 2.0, "ms", marks=[1.0], goal=25.0)

    classes = [element.get("class") for element in svg]
    assert [classes.count(name) for name in ("line c0", "line c1", "mark", "goal")] == [1, 1, 1, 1]
    assert [title.text for title in svg.iter("title")][:2] == ["0.5 s: p50 10 ms", "1.5 s: p50 20 ms"]
    assert [text.text for text in svg.iter("text")][:5] == ["0", "10", "20", "30", "40"]


def test_dots_are_not_joined_and_names_are_escaped():
    svg = drawn([Series("a < b", [(0, 1)], dots=True)], 1.0, "")

    assert not [e for e in svg if "line" in (e.get("class") or "")]
    assert [title.text for title in svg.iter("title")] == ["0 s: a < b 1"]
    assert "a &lt; b" in legend(["a < b"])


def test_empty_or_all_zero_series_can_be_drawn():
    for points in ([], [(0.0, 0.0)]):
        assert len(drawn([Series("x", points)], 0.0, "")) > 0


def test_long_run_is_limited_to_the_points_a_page_fits():
    points = [(float(n), float(n % 7)) for n in range(3600)]
    few = thinned(points)

    assert len(few) == MOST_POINTS
    assert few[0] == (0.0, 6.0)
    assert thinned(points[:10]) == points[:10]
    assert len(chart([Series("x", few)], 3600.0, "", marks=[at for at, _ in points])) < 50_000
