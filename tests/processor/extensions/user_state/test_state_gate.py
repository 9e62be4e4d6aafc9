"""The gate: it closes while looks cost more than they save, opens when hits begin to pay, and never shuts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.extensions.user_state.state_gate import CREDIT, MOST_HALVINGS, StateGate

USER_S, LOOK_S, KEEP_S = 1.0, 0.02, 0.08


def send(gate, requests, hit_rate, seed=0, user_s=USER_S):
    """Send requests whose looks are hits at a rate; return the share that was looked for, and seconds saved each."""
    random, asked, saved_s = np.random.default_rng(seed), 0, 0.0
    for draw, hit in zip(random.integers(0, 1 << 62, requests).tolist(), random.random(requests) < hit_rate):
        if gate.admits(draw):
            asked += 1
            gained_s, spent_s = (user_s, LOOK_S) if hit else (0.0, LOOK_S + KEEP_S)
            saved_s += gained_s - spent_s
            gate.judge(draw, gained_s, spent_s)
    return asked / requests, saved_s / requests


def test_gate_closes_without_hits_and_then_costs_next_to_nothing():
    gate = StateGate()
    assert gate.share == 1.0
    send(gate, 8000, 0.0)
    share, saved_s = send(gate, 8000, 0.0)
    assert gate.share == 2.0**-MOST_HALVINGS
    assert 0 < share < 0.05
    assert saved_s > -0.005 * USER_S


def test_gate_opens_when_hits_pay():
    gate = StateGate()
    send(gate, 8000, 0.0)
    send(gate, 16000, 0.5)
    assert gate.share == 1.0
    assert send(gate, 1000, 0.5)[0] == 1.0


@pytest.mark.parametrize(("hit_rate", "user_s", "opens"), [(0.3, 1.0, True), (0.3, 0.15, False), (0.05, 4.0, True)])
def test_gate_weighs_what_hits_save_and_not_how_many_there_are(hit_rate, user_s, opens):
    gate = StateGate()
    send(gate, 30000, hit_rate, user_s=user_s)
    assert gate.share == (1.0 if opens else 2.0**-MOST_HALVINGS)


def test_burst_of_misses_is_paid_from_what_was_won():
    gate = StateGate()
    send(gate, 4000, 0.9)
    assert send(gate, CREDIT, 0.0)[0] == 1.0
    send(gate, 40 * CREDIT, 0.0)
    assert gate.share == 2.0**-MOST_HALVINGS


def test_users_who_come_back_are_not_judged_by():
    gate = StateGate()
    send(gate, 8000, 0.0)
    while gate.share < 1.0:
        # Users of the half that came back last have no states yet.
        for draw in range(1 << MOST_HALVINGS + 1):
            if gate.admits(draw):
                new = draw & (int(2 / gate.share) - 1)
                gate.judge(draw, 0.0 if new else USER_S, LOOK_S + bool(new) * KEEP_S)
    assert gate.share == 1.0


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.floats(0, 1e9), st.floats(0, 1e9)), max_size=300))
def test_share_is_always_one_that_draws_can_be_in(looks):
    gate = StateGate()
    for draw, saved_s, spent_s in looks:
        gate.judge(draw, saved_s, spent_s)
        assert 2.0**-MOST_HALVINGS <= gate.share <= 1.0
        assert gate.admits(0)
