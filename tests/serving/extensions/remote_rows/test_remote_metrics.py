"""What a scrape says of tables in a row store."""

from types import SimpleNamespace

from freshet_serving.serving.extensions.remote_rows.remote_metrics import remote_families


def test_counters_are_reported_for_models_with_remote_tables():
    counters = {"asked": 7, "cached": 4, "fetched": 2, "lost": 1, "fetches": 1, "fetch_s": 0.5}
    stats = [SimpleNamespace(model="ctr", remote=counters), SimpleNamespace(model="rank", remote=None)]
    samples = {(s.name, s.labels["model"]): s.value for family in remote_families(stats) for s in family.samples}
    assert samples == {
        ("freshet_model_remote_ids_total", "ctr"): 7,
        ("freshet_model_remote_cached_ids_total", "ctr"): 4,
        ("freshet_model_remote_unavailable_ids_total", "ctr"): 1,
        ("freshet_model_remote_fetches_total", "ctr"): 1,
        ("freshet_model_remote_fetch_seconds_total", "ctr"): 0.5,
    }
