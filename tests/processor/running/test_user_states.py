"""The seam of kept users: memory of the size asked for, and a line that names the extension where it is left out."""

import numpy as np
import pytest

from freshet_serving.processor import ports
from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.running.user_states import open_states, states_memory
from tests.support.extensions import needs


@needs("user_state")
def test_memory_is_of_the_size_asked_for():
    memory = states_memory(2, 2)
    assert memory.nbytes == 2 << 20
    assert open_states(memory, 2, 1, FakeClock()) is not None


def test_memory_without_the_extension_is_refused(monkeypatch):
    monkeypatch.setattr(ports.ENGINE, "_known", {})
    for refused in (lambda: states_memory(1, 1), lambda: open_states(np.zeros(9, np.int64), 1, 0, FakeClock())):
        with pytest.raises(BadInput, match="user_state_mb needs the extension 'user_state'"):
            refused()
