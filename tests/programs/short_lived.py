"""`freshet` as a process whose kept users and states live for seconds, which no option of the product sets.

python -m tests.programs.short_lived serve ...
"""

from __future__ import annotations

from freshet_serving.processor.extensions.user_state.state_store import StateStore
from freshet_serving.serving.commands.cli import main

TTL_S = 5.0


if __name__ == "__main__":
    # Before workers are forked.
    StateStore.__init__.__defaults__ = (TTL_S,)
    main()
