"""Publications, rollbacks, restarts, other writers in any order: what is served is what the trainer has, to the bit."""

import tempfile

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from freshet_serving.models.publishing.publisher import Publisher
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.contents import stored
from freshet_serving.processor.repository.model_repository import Repository
from tests.support.packages import make_delta, make_weights, row_of, write_package

KEYS = st.integers(0, 24)
BIAS = "mlp_0/bias"


class Trainer(RuleBasedStateMachine):
    """rows: what the trainer has. changed: keys that it changed since it published."""

    @initialize(dtype=st.sampled_from(["float32", "float16", "bfloat16"]))
    def begin(self, dtype):
        self.folder = tempfile.TemporaryDirectory()
        self.dtype = dtype
        write_package(self.folder.name, users=range(12), dtype=dtype)
        self.publisher = Publisher(self.folder.name, "small")
        self.rows = {key: row_of(key, 0) for key in range(12)}
        self.bias = make_weights(0)[BIAS]
        self.changed, self.bias_changed, self.tag = set(), False, 0
        self.saved = None
        self.save()

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def change_log(self):
        return ChangeLog.of(Repository(self.folder.name).version("small"))

    @rule(keys=st.sets(KEYS, max_size=4), removed=st.sets(KEYS, max_size=2))
    def learn(self, keys, removed):
        self.tag += 1
        for key in keys - removed:
            self.rows[key] = row_of(key, self.tag)
        for key in removed:
            self.rows.pop(key, None)
        self.changed |= keys | removed
        if self.tag % 3 == 0:
            self.bias, self.bias_changed = make_weights(self.tag)[BIAS], True

    @rule()
    def publish(self):
        self.take_undone()
        there = sorted(key for key in self.changed if key in self.rows)
        self.publisher.publish(
            rows={"user": (there, [self.rows[key] for key in there])} if there else None,
            removed={"user": sorted(self.changed - set(there))},
            dense={BIAS: self.bias} if self.bias_changed else None,
        )
        self.published()

    @rule()
    def save(self):
        self.saved = dict(self.rows), self.bias, str(self.publisher.generation)

    @rule()
    def die_and_go_on(self):
        rows, self.bias, generation = self.saved
        self.rows = dict(rows)
        self.publisher = Publisher(self.folder.name, "small", generation=generation)
        self.take_undone()
        keys = list(self.rows)
        table = (keys, np.array([self.rows[key] for key in keys]).reshape(len(keys), 4))
        self.publisher.publish_difference({"user": table}, {BIAS: self.bias})
        self.published()

    @rule(back=st.integers(1, 4))
    def roll_back(self, back):
        change_log = self.change_log()
        line = change_log.history.line()
        change_log.rollback(line[max(0, len(line) - 1 - back)].step)

    @precondition(lambda self: not self.publisher_is_behind())
    @rule(tag=st.integers(1, 3))
    def somebody_drops_a_file(self, tag):
        """Of another table: two who train the same rows have no one truth."""
        history = self.change_log().history
        step = history.top + 1
        path = Repository(self.folder.name).folder("small", 1) / "deltas" / f"{step}.safetensors"
        write_delta(path, make_delta(step, tags=["a", "new"], parent=history.head.step, tag=tag))
        self.change_log()

    def publisher_is_behind(self):
        history = self.change_log().history
        return history.on_line(self.publisher.generation.step) is None

    def take_undone(self):
        undone = self.publisher.undone()
        if undone is None:
            return
        if "user" in undone.rows:
            keys, rows = undone.rows["user"]
            self.rows |= {int(key): row for key, row in zip(keys, rows)}
            self.changed -= set(keys.tolist())
            for key in undone.removed["user"].tolist():
                self.rows.pop(key, None)
                self.changed.discard(key)
        if BIAS in undone.dense:
            self.bias, self.bias_changed = undone.dense[BIAS], False

    def published(self):
        self.changed, self.bias_changed = set(), False
        contents = self.publisher.served()
        keys, rows = contents.table("user")
        assert keys.tolist() == sorted(self.rows)
        wanted = stored(np.array([self.rows[key] for key in keys.tolist()], np.float32).reshape(-1, 4), self.dtype)
        assert rows.tobytes() == wanted.tobytes()
        assert contents.dense[BIAS].tobytes() == self.bias.tobytes()
        assert self.publisher.generation.step <= self.publisher._change_log.history.head.step

    @invariant()
    def steps_are_never_used_twice(self):
        if hasattr(self, "publisher"):
            history = self.change_log().history
            steps = [link.step for link in history.links.values()]
            assert len(steps) == len(set(steps))


Trainer.TestCase.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
test_what_is_served_is_what_the_trainer_has_whatever_happened = Trainer.TestCase
