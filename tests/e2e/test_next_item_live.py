"""What a cold user is told by a real server: recent popularity, which a delta moves and going back takes back."""

import shutil
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving import Client, Ragged
from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.training.next_item_run import NextItemRun
from freshet_serving.processor.extensions.top_items.section import ItemRanking
from freshet_serving.processor.package.item_rows import ItemRows
from freshet_serving.processor.repository.model_repository import Repository
from tests.e2e.servers import ALONE, LiveServer
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.tensorflow, pytest.mark.long]

USERS, ITEMS, FULL_ROWS, DELTA_ROWS, K = 40, 30, 400, 1200, 5
DIM = 8
HIT, OLD_HIT, UNKNOWN, BEFORE, AFTER = 107, 103, 999_999, "1.0", "1.1"


def write_log(path):
    """Write events of which a third is of one item, and behind the full version of another one."""
    random = np.random.default_rng(11)
    lines = ["user_id,item_id,label,ts"]
    for row in range(FULL_ROWS + DELTA_ROWS):
        hit = OLD_HIT if row < FULL_ROWS else HIT
        item = hit if random.random() < 0.33 else 100 + random.integers(ITEMS)
        lines.append(f"{random.integers(USERS)},{item},1,{1000 + row}")
    path.write_text("\n".join(lines) + "\n")


def config_of(folder):
    """A file that names the network, its columns and the history, and nothing of counts."""
    return parse_config(
        {
            "model": {"name": "next", "arch": "sasrec_next"},
            "data": {"path": str(folder / "log.csv"), "label": "label", "time": "ts"},
            "features": {
                "user_id": {"kind": "id", "side": "user"},
                "item_id": {"kind": "id", "side": "item", "dim": DIM},
            },
            "sequences": {
                "history": {
                    "columns": {"item": "item_id"},
                    "tables": {"item": "item_id"},
                    "from_events": "user_id",
                    "ties": "file",
                    "max_length": 6,
                }
            },
            "train": {"epochs": 1, "seed": 1},
            "publish": {"repository": str(folder / "repository"), "full_rows": FULL_ROWS, "delta_rows": DELTA_ROWS},
        }
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("next")
    write_log(folder / "log.csv")
    run = NextItemRun(config_of(folder))
    run.full()
    list(run.stream())
    return folder / "repository"


@pytest.fixture(scope="module", params=[ALONE, ("--workers", "2")], ids=["alone", "workers"])
def live(request, trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    # Going back is kept in the repository.
    shutil.copytree(trained, folder / "repository")
    options = (*request.param, "--delta-guard", "off")
    with LiveServer(folder / "repository", *options, log=folder / "serve.log") as server:
        yield server


def top(live, history):
    """The ids and scores of the best items for a history, and the generation that names them."""
    with Client(f"http://127.0.0.1:{live.http_port}", timeout_s=60) as client:
        reply = client.predict("next", {"history.item": Ragged.of([history])}, top_items=K)
    ids, scores = reply.outputs["item_ids"][0], reply.outputs["scores"][0]
    return SimpleNamespace(ids=ids.tolist(), scores=scores.tolist(), generation=str(reply.generation))


def serves(live, generation):
    return live.generation("next") == generation


def go_to(live, generation):
    status, reply = live.post_json("/admin/models/next/rollback", {"generation": generation})
    assert status == 200, reply
    until(partial(serves, live, generation))


def test_cold_users_get_recent_popularity_of_the_generation_that_answers(live):
    until(partial(serves, live, AFTER))
    moved = top(live, [])
    assert (moved.ids[0], moved.generation) == (HIT, AFTER)
    go_to(live, BEFORE)
    first = top(live, [])
    assert (first.ids[0], first.generation) == (OLD_HIT, BEFORE)
    assert first.ids != moved.ids
    # Candidates have the scores of the whole table.
    candidates = {"item_id": np.array(first.ids), "history.item": Ragged.of([[]])}
    with Client(f"http://127.0.0.1:{live.http_port}") as client:
        scores = client.predict("next", candidates).outputs["score"]
    np.testing.assert_allclose(np.ravel(scores), first.scores, atol=1e-5)


def test_unknown_and_seen_items_of_a_history(live):
    unknown = top(live, [UNKNOWN])
    assert np.isfinite(unknown.scores).all()
    assert len(set(unknown.ids)) == K
    seen = [HIT, OLD_HIT, UNKNOWN]
    assert not set(seen) & set(top(live, seen).ids)
    # An unknown newest event has no successors, and hides none of the events before it.
    assert np.isfinite(top(live, [OLD_HIT, UNKNOWN]).scores).all()


def test_file_that_says_nothing_of_counts_gets_them(trained):
    manifest = Repository(trained).version("next", 1).manifest
    ranking = ItemRanking.of(manifest)
    assert ranking is not None
    assert ranking.successors == ItemRows.around(DIM, {})


@pytest.mark.parametrize("history", [[HIT, OLD_HIT], [105], []])
def test_explained_places_and_scores_are_those_of_the_list(live, history):
    listed = top(live, history)
    for place, (item, score) in enumerate(zip(listed.ids, listed.scores), 1):
        asked = {"inputs": {"history.item": [history]}, "item": item}
        status, told = live.post_json("/admin/models/next/explain", asked)
        assert status == 200, told
        (side,) = told["sides"]
        assert (side["item"]["place"], side["generation"]) == (place, listed.generation)
        assert side["item"]["parts"].keys() == {"learned", "popularity", "successors"}
        np.testing.assert_allclose([side["item"]["score"], sum(side["item"]["parts"].values())], score, atol=1e-4)
    status, gone = live.post_json("/admin/models/next/explain", {"inputs": {"history.item": [[HIT]]}, "item": HIT})
    assert gone["sides"][0]["item"]["why_not"] == ["history: it is one of the user's own items"]
