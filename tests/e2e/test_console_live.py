"""The console in a browser, on a real server: what a person does there, that it fits, and that anybody can use it."""

import contextlib
import json
import os
import re
from pathlib import Path

import pytest

from freshet_serving.processor.repository import TrainerReport, TrainerState
from freshet_serving.processor.versions.trainer_watch import TrainerStanding
from tests.e2e.explanation import CANNED, LONG
from tests.support import console_pages
from tests.support.console_pages import SIZES, VIEWS, overflowing, page_of, show
from tests.support.console_stage import MODEL, OTHER, Stage, held, played
from tests.support.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.skipif(bool(console_pages.missing()), reason=console_pages.missing()),
]
AXE = Path(os.environ.get("FRESHET_AXE", Path(__file__).parents[2] / "build" / "axe" / "axe.min.js"))
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def opened():
    with console_pages.browser() as one:
        yield one


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    with Stage(tmp_path_factory.mktemp("stage")) as one:
        played(one)
        yield one


@pytest.fixture
def page(opened, stage):
    with page_of(opened, stage.address) as one:
        yield one
        assert one.troubles == []


def answer(page, verb, reason=None):
    """Says yes to what is asked; returns the command lines that were shown."""
    dialog = page.locator("dialog[open]")
    dialog.wait_for()
    if reason:
        dialog.get_by_label("Reason").fill(reason)
    lines = dialog.locator("pre").all_inner_texts()
    dialog.get_by_role("button", name=verb, exact=True).click()
    dialog.wait_for(state="hidden")
    return lines


def canned(page):
    """Has the page's explanations answered by a canned one."""
    asked = []

    def explain(route):
        asked.append(route.request.post_data)
        route.fulfill(json=CANNED)

    page.route("**/explain", explain)
    return asked


def test_overview_shows_rates_models_and_workers(page):
    show(page, "overview")
    until(lambda: page.locator(".figures b").first.inner_text() not in ("–", "0"), lambda: page.wait_for_timeout(50))
    assert page.locator(".card").count() == 2
    assert "worker 1" in page.inner_text("main")
    assert page.locator("#state").inner_text() == "ready"
    page.get_by_role("link", name=MODEL, exact=True).click()
    page.wait_for_selector(".timeline li")
    assert page.title() == "ctr · Timeline · Freshet"


GATE = {
    "held": {"8": f"held by gate: the mean score of 'score' would change by a factor of 2810, limit 2 {HOSTILE}"},
    "verdicts": {
        "8": {
            "outcome": "out of line",
            "reason": "",
            "rows": 256,
            "unreadable": 0,
            "figures": [
                {"kind": "mean", "what": "score", "value": 7.94},
                {"kind": "unreadable", "what": "", "value": 0.0},
                {"kind": "disorder", "what": "score", "value": 0.0312},
            ],
        }
    },
}


def altered(page, change):
    """Has what the server says of its models changed by a function before the page sees it."""

    def fulfil(route):
        reply = route.fetch()
        told = reply.json()
        change(told["models"])
        route.fulfill(response=reply, json=told)

    page.route("**/admin/models", fulfil)


@contextlib.contextmanager
def altered_page(opened, stage, size, change):
    with page_of(opened, stage.address, size) as page:
        altered(page, change)
        yield page
        assert overflowing(page) == []
        assert page.troubles == []


def shown_command(page, notice, verb):
    """The command line that the dialog behind a button of a notice shows."""
    notice.get_by_role("button", name=f"{verb}…").click()
    dialog = page.locator("dialog[open]")
    dialog.wait_for()
    return " ".join(dialog.locator("pre").all_text_contents())


@pytest.mark.parametrize("size", SIZES)
def test_held_version_is_shown_beside_the_served_one_with_two_ways_out(opened, stage, size):
    with altered_page(opened, stage, size, lambda models: models[MODEL].update(gate=GATE)) as page:
        show(page, "timeline")
        notice = page.locator(".notice", has_text="Version 8")
        notice.wait_for()
        text = notice.inner_text()
        assert "held by gate: the mean score of 'score' would change by a factor of 2810" in text
        assert re.search(r"\d\.\d+ goes on\.", text)
        assert "2810 times" in text
        assert "256" in text
        assert overflowing(page) == []
        assert f"freshet version reject {MODEL} 8" in shown_command(page, notice, "Reject")


@pytest.mark.parametrize("size", SIZES)
def test_rolled_back_version_is_shown_with_the_way_to_serve_it_again(opened, stage, size):
    withdrawn = {"version": 8, "state": "END", "error": f"withdrawn by rollback: clicks fell {HOSTILE}"}
    with altered_page(opened, stage, size, lambda models: models[MODEL]["versions"].append(withdrawn)) as page:
        show(page, "timeline")
        notice = page.locator(".notice", has_text="Version 8")
        notice.wait_for()
        text = notice.inner_text()
        assert f"Version 8 is withdrawn by rollback: clicks fell {HOSTILE}." in text
        assert re.search(r"\d\.\d+ is served\.", text)
        assert notice.get_by_role("button", name="Reject…").count() == 0
        assert overflowing(page) == []
        assert f"freshet version release {MODEL} 8" in shown_command(page, notice, "Release")


def test_delta_is_dropped_served_and_rolled_back(page, stage):
    before, path = stage.generation(), stage.delta()
    show(page, "timeline")
    data = page.evaluate_handle(
        """([name, bytes]) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], name));
            return transfer;
        }""",
        [path.name, list(path.read_bytes())],
    )
    page.dispatch_event("main", "dragover", {"dataTransfer": data})
    assert page.locator(".veil").is_visible()
    page.dispatch_event("main", "drop", {"dataTransfer": data})
    lines = answer(page, "Apply")
    assert lines[0].startswith(f"freshet delta apply ctr {path.name} --admin ")
    assert "--data-binary" in lines[1]
    after = stage.generation()
    assert after != before
    page.locator(f".timeline .current .generation:text-is('{after}')").wait_for()
    page.get_by_role("button", name=f"Roll back to here: {before}", exact=True).click()
    lines = answer(page, "Roll back", reason="it's a test")
    assert lines[0].startswith(f"freshet delta rollback ctr {before} --reason 'it'\\''s a test' --admin ")
    assert stage.generation() == before
    page.locator(f".timeline .current .generation:text-is('{before}')").wait_for()
    assert "it's a test" in page.inner_text(".timeline")
    show(page, "overview")
    page.get_by_text(f"roll 'ctr' back to {before}").first.wait_for()


def test_declined_confirmation_changes_nothing(page, stage):
    before = stage.generation()
    show(page, "timeline")
    page.locator("button.back").first.click()
    page.keyboard.press("Escape")
    page.locator("dialog[open]").wait_for(state="hidden")
    assert stage.generation() == before


def test_file_that_is_not_a_delta_is_refused_with_reason(page, stage, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"nothing of the kind")
    show(page, "timeline")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Apply a delta…").click()
    chooser.value.set_files(tmp_path / "x.safetensors")
    page.get_by_role("button", name="Apply", exact=True).click()
    alert = page.locator("dialog [role=alert]")
    until(lambda: alert.inner_text() != "", lambda: page.wait_for_timeout(20))
    page.get_by_role("button", name="Cancel").click()
    page.troubles.clear()


def test_split_and_labels_can_be_changed(page, stage):
    show(page, "traffic")
    page.get_by_label("Weight of canary").fill("30")
    page.get_by_label("Weight of stable").fill("70")
    page.get_by_role("button", name="Change the split…").click()
    lines = answer(page, "Change")
    assert '"split":{"stable":70,"canary":30}' in lines[0]
    assert stage.model()["shares"] == {"1": pytest.approx(0.7), "2": pytest.approx(0.3)}
    page.get_by_text("30.0 %").first.wait_for()
    page.get_by_label("Label", exact=True).fill("next")
    page.get_by_role("button", name="Set…").click()
    answer(page, "Point")
    assert stage.model()["labels"]["next"] == 2
    page.get_by_role("button", name="Remove label next", exact=True).click()
    assert answer(page, "Remove")[0].endswith("/labels/next -X DELETE")
    assert "next" not in stage.model()["labels"]
    page.get_by_text("since the trial began").wait_for()
    assert page.get_by_text("Version 2 against version 1").is_visible()


def test_request_is_tried_as_typed(page, stage):
    show(page, "try")
    page.get_by_text("Filled with a recent request.").wait_for()
    page.get_by_label("user", exact=False).first.fill(f"[{LONG}, 3, 4]")
    assert LONG in page.locator("pre").first.inner_text()
    page.get_by_role("button", name="Send").click()
    page.wait_for_selector(".result table")
    assert page.locator(".result tbody tr").count() == 3
    assert page.locator(".result dd").first.inner_text() in (stage.generation(), "2.0")
    page.get_by_label("user", exact=False).first.fill('["a"]')
    page.get_by_role("button", name="Send").click()
    page.locator(".result .problem").wait_for()
    assert page.locator(".result .problem").inner_text().startswith("400: ")
    page.troubles.clear()
    page.get_by_label("user", exact=False).first.fill("[1, 2, 3]")
    python = page.locator("pre").nth(1).inner_text()
    compile(python, "shown", "exec")


def test_explanation_is_shown_side_by_side(page, stage):
    asked = canned(page)
    show(page, "explain")
    page.wait_for_function("document.querySelectorAll('select')[1].options.length > 2")
    page.get_by_role("button", name="Explain", exact=True).click()
    page.wait_for_selector(".features")
    body = json.loads(asked[0])
    assert body["inputs"].keys() == {"user", "tags", "floats"}
    assert re.fullmatch(r"1\.\d+", body["against"])
    text = page.inner_text("main")
    for said in ("0.067425", "0.0601", "feature user", "+0.00610", "−0.00200", LONG, "delta 21", "default: no row"):
        assert said in text
    for said in ("Events of history", "As of 1.19", "59: item-59, buy", "−0.00590", "44: item-44, buy", "44 more are"):
        assert said in text
    assert "43: item-43" not in text
    assert overflowing(page) == []


def test_server_explains_a_score_under_two_generations(page, stage):
    show(page, "explain")
    page.wait_for_function("document.querySelectorAll('select')[1].options.length > 4")
    page.get_by_label("Against").select_option(index=4)
    against = page.get_by_label("Against").input_value()
    page.get_by_role("button", name="Explain", exact=True).click()
    page.wait_for_selector(".features")
    text = page.inner_text("main")
    assert f"As of {stage.generation()}" in text
    assert f"Against {against}" in text
    assert "What moved the score" in text
    assert overflowing(page) == []


def test_held_delta_is_shown_and_rejected(page, stage):
    before = stage.generation()
    held(stage)
    show(page, "timeline")
    page.get_by_role("button", name="Reject…").click()
    lines = answer(page, "Reject", reason="seen")
    assert lines[0].startswith("freshet delta reject ctr --version 1 --reason seen")
    until(lambda: stage.model()["served"]["1"]["chain"]["state"] == "CURRENT")
    assert stage.generation() == before
    page.locator(".notice").wait_for(state="hidden")
    assert page.locator(".timeline .undone").count() >= 1


@pytest.mark.parametrize("size", SIZES)
def test_problems_are_listed_first_with_current_freshness(opened, stage, size):
    def hold(models):
        served = models[OTHER]["served"]["1"]
        served["chain"] |= {"state": "HELD", "reason": "1.4 held: the mean score would move by 109 %", "behind": 8}
        served |= {"delta_count": 1, "published_at": served["published_at"] - 7200, "last_freshness_s": 0.2}

    with altered_page(opened, stage, size, hold) as page:
        page.reload()
        page.locator(f"#state:text-is('{OTHER}: HELD')").wait_for()
        assert "bad" in page.locator("#state").get_attribute("class")
        first = page.locator("main .page > *:not(.hidden)").first
        assert f"{OTHER} HELD: 1.4 held: the mean score would move by 109 % (8 deltas wait)" in first.inner_text()
        assert page.locator(".card .name").first.inner_text() == OTHER
        page.locator(".figures dd:has-text('2 h')").wait_for()


@pytest.mark.parametrize("size", SIZES)
def test_dead_trainer_comes_first_and_in_red(opened, stage, size):
    report = TrainerReport(
        "0badcafe", TrainerState.RUNNING, 90, 10.0, True, rows=1_250_000, rows_per_s=310.4, version=1, step=16,
        held_out={"auc": 0.7831, "log_loss": 0.4412}, gate="within its bounds",
    )  # fmt: skip
    dead = json.loads(json.dumps(TrainerStanding(report, 660.0).describe()))
    with altered_page(opened, stage, size, lambda models: models[MODEL].update(trainer=dead)) as page:
        show(page, "overview")
        page.get_by_text("silent for 11 min").first.wait_for()
        first = page.locator(".wrong .notice").first
        assert "bad" in first.get_attribute("class").split()
        assert first.inner_text() == "ctr trainer silent for 11 min: its last report was of version 1, step 16"
        assert page.locator("#state").inner_text() == "ctr: trainer silent for 11 min"
        assert "trainer silent for 11 min · AUC 0.7831 · log-loss 0.4412" in page.locator(".card").first.inner_text()
        assert overflowing(page) == []
        show(page, "timeline")
        trainer = page.get_by_label("Trainer", exact=True).inner_text()
        assert "1,250,000" in trainer
        assert "within its bounds" in trainer


def test_sessions_can_be_resized(page, stage):
    show(page, "overview")
    page.get_by_label("Sessions of default").fill("3")
    page.get_by_role("button", name="Set").click()
    lines = answer(page, "Resize")
    assert lines[0].endswith("-X PUT")
    assert stage.server.about()["groups"]["default"]["sessions"] == 6


def test_rollback_works_by_keyboard_alone(page, stage):
    stage.feed(1)
    before = stage.generation()
    show(page, "timeline")
    wanted = f"1.{int(before.split('.')[1]) - 1}"
    until(
        lambda: page.evaluate("document.activeElement.getAttribute('aria-label') || ''").startswith("Roll back to"),
        lambda: page.keyboard.press("Tab"),
    )
    page.keyboard.press("Enter")
    page.keyboard.type("by hand")
    page.keyboard.press("Tab")
    until(
        lambda: page.evaluate("document.activeElement.textContent") == "Roll back", lambda: page.keyboard.press("Tab")
    )
    page.keyboard.press("Enter")
    page.locator("dialog[open]").wait_for(state="hidden")
    until(lambda: stage.generation() != before)
    assert stage.generation().split(".")[1] <= wanted.split(".")[1]


@pytest.mark.parametrize("size", SIZES)
def test_nothing_overflows(opened, stage, size):
    with page_of(opened, stage.address, size) as page:
        canned(page)
        for view in VIEWS:
            show(page, view)
            if view == "explain":
                page.get_by_role("button", name="Explain", exact=True).click()
                page.wait_for_selector(".features")
            page.wait_for_timeout(300)
            assert overflowing(page) == [], view
            if view == "timeline":
                page.locator(".timeline summary").first.click()
                page.locator("button.back:visible, button.main").first.click()
                assert overflowing(page) == [], "action"
                page.keyboard.press("Escape")
        assert page.troubles == []


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not there: make build/axe/axe.min.js")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(opened, stage, scheme):
    with page_of(opened, stage.address, "desktop", scheme, bypass_csp=True) as page:
        canned(page)
        for view in [*VIEWS, "action"]:
            show(page, "timeline" if view == "action" else view)
            if view == "explain":
                page.get_by_role("button", name="Explain", exact=True).click()
                page.wait_for_selector(".features")
            if view == "timeline":
                page.locator(".timeline summary").first.click()
            if view == "action":
                page.locator("button.back").first.click()
            page.evaluate(AXE.read_text())
            found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            serious = [v for v in found["violations"] if v["impact"] in ("serious", "critical")]
            assert [(view, v["id"], v["nodes"][0]["html"], v["help"]) for v in serious] == []
            assert len(found["passes"]) > 10


def test_token_is_requested_and_kept_for_the_tab(opened, tmp_path):
    stage = Stage(tmp_path, "--workers", "1", "--admin-token", "s3cret", pause_s=0.05)
    with stage, page_of(opened, stage.address) as page:
        late = []
        page.route("**/admin/live", lambda route: late.append(route))
        page.get_by_label("Admin token").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_text("The server does not accept this token.").wait_for()
        until(lambda: late, lambda: page.wait_for_timeout(20))
        page.get_by_label("Admin token").fill("s3cret")
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_selector(".card .spark")
        with page.expect_response("**/admin/live"):
            late[0].fulfill(status=401)
        page.unroute("**/admin/live")
        page.wait_for_selector(".card .spark")
        page.reload()
        page.wait_for_selector(".card .spark")
        show(page, "timeline")
        page.get_by_role("button", name="Apply a delta…").wait_for()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Admin token").wait_for()
        assert page.evaluate("sessionStorage.length") == 0


def test_unreachable_server_is_reported_and_reconnected(opened, stage):
    with page_of(opened, stage.address) as page:
        show(page, "overview")
        page.context.set_offline(True)
        page.get_by_text("The server does not answer.").wait_for()
        page.context.set_offline(False)
        page.locator("#state:text-is('ready')").wait_for()


def test_server_text_is_never_rendered_as_html(opened, stage):
    """Names and reasons that would be HTML."""
    with page_of(opened, stage.address) as page:

        def hostile(models):
            models[HOSTILE] = models.pop(MODEL)
            del models[OTHER]
            models[HOSTILE]["labels"] = {HOSTILE: 1}
            models[HOSTILE]["versions"][0]["error"] = HOSTILE

        altered(page, hostile)
        page.reload()
        page.get_by_role("link", name=HOSTILE).wait_for()
        assert page.locator("img").count() == 0
        page.get_by_role("link", name=HOSTILE).click()
        page.get_by_role("heading", name=HOSTILE).wait_for()
        page.goto(f"{stage.address}/#/models/{'%3Cimg src=x%3E'}/traffic")
        page.get_by_role("heading", name="<img src=x>").wait_for()
        assert page.locator("img").count() == 0
