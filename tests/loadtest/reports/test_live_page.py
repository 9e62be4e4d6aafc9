from html.parser import HTMLParser

from loadtest.reports.live_page import page
from tests.loadtest.reports.summaries import summary

VOID = {"meta"}


class Whole(HTMLParser):
    """What a page is made of; fails where a tag is not closed."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes


def parsed(text):
    found = Whole()
    found.feed(text)
    found.close()
    assert found.open == []
    return found


def test_page_is_one_file_that_fetches_nothing():
    found = parsed(page(summary(), "night"))

    assert not {"script", "link", "img", "iframe"} & set(found.tags)
    assert not [name for name, _ in found.attributes if name in ("src", "href", "srcset", "style")]
    assert "url(" not in page(summary(), "night")


def test_page_charts_load_latency_freshness_cpu_and_memory_over_time():
    text = page(summary(), "night")

    assert parsed(text).tags.count("svg") == 5
    for heading in ("Throughput, requests a second: higher", "Latency, ms: lower", "Freshness, ms from", "memory, MiB"):
        assert heading in text
    assert text.count('class="mark"') == 4 * 4
    assert "prefers-color-scheme: dark" in text


def test_page_contains_figures_command_layout_and_failures():
    text = page(summary("status 500: <a> | b"), "night")

    assert "1001 predict requests" in text
    assert "1 failed, 0 mixed" in text
    assert '<td>POST to the admin API</td><td class="n">2</td><td class="n">10.00</td>' in text
    assert "The goal is a p99 under 250 ms: met." in text
    assert "<td>status 500: &lt;a&gt; | b</td>" in text
    assert "<code>make loadtest</code>" in text
    assert "Server: workers=2 compute=inline (2 cores)" in text


def test_run_with_little_data_has_a_page_too():
    nothing = {"windows": [], "usage": [], "published": [], "freshness_ms": {}, "seconds": 0.0, "requests": 0}
    text = page({**summary(error="locust: exit code 1, and no record"), **nothing}, "half")

    parsed(text)
    assert text.count("Not measured.") == 5
    assert "It ended before its time: locust: exit code 1, and no record" in text


def test_page_of_an_hour_is_as_small_as_a_minute():
    s = summary()
    windows = [{**s["windows"][0], "at_s": float(n)} for n in range(3600)]
    usage = [{**s["usage"][0], "at_s": float(n)} for n in range(3600)]
    published = [{**s["published"][0], "at_s": float(n)} for n in range(3600)]

    assert (
        len(page({**s, "windows": windows, "usage": usage, "published": published, "seconds": 3600.0}, "x")) < 300_000
    )
