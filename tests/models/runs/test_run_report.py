from html.parser import HTMLParser

from freshet_serving.models.runs.run_report import report_html

EVIL = '<script>alert("x")</script>&amp;'


class Page(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert not {"src", "href", "onload", "onclick"} & {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


def progress(rows, **more):
    standing = {"step": rows // 10, "epoch": 0, "position": rows, "dense_learning_rate": 0.001}
    by_table = {"learning_rates": {EVIL: 0.05}, "table_rows": {EVIL: rows // 2}}
    made = {"what": "progress", "rows": rows, "seconds": rows / 100, "rows_per_s": 100.0, "loss": 0.6, **standing}
    return made | by_table | more


def measured(**more):
    return {"rows": 50, "weight": 50.0, "auc": 0.71234, "log_loss": 0.5, "predicted": 0.3, "observed": 0.25} | more


LINES = [
    progress(100),
    {"what": "epoch", "epoch": 1, "auc": 0.7, "log_loss": 0.5},
    {"what": "epoch", "epoch": 2, "auc": None, "log_loss": 0.4},
    progress(2000, auc=0.68, log_loss=0.5),
    {"what": "all", "label": EVIL, **measured(), "group": EVIL, "grouped_auc": 0.65},
    {"what": "decile", "label": EVIL, "low": 0.1, "high": 0.2, **measured()},
    {"what": "slice", "label": EVIL, "by": EVIL, "value": EVIL, "others": 0, **measured(auc=None)},
    {"what": "slice", "label": EVIL, "by": EVIL, "value": "", "others": 12_000, **measured()},
]


def test_report_shows_measurements_and_contains_no_executable_code():
    page = Page(report_html(EVIL, LINES, "1.0 to 1.3, 4 of them", {"model": {"name": EVIL}}))
    assert "script" not in page.tags
    assert page.tags.count("table") == 2
    assert page.tags.count("svg") == 6
    assert page.text.count(EVIL) > 8
    for told in ("2,000 rows learned in 20.0 s", "Published: 1.0 to 1.3", "AUC 0.7123", "12,000 others", "nan"):
        assert told in page.text


def test_nearly_empty_report_is_still_a_page():
    page = Page(
        report_html("ctr", [{"what": "all", "label": "clicked", "rows": 0, "auc": None, "log_loss": None}], "", {})
    )
    assert "over 0 rows" in page.text
