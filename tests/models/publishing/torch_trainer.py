"""A PyTorch loop that publishes; run under a Python that has PyTorch, where much of what tests need may be missing.

    python -m tests.models.publishing.torch_trainer FOLDER

Runs every case with a repository of its own in the folder: PyTorch takes longer to import than they take. Each asserts
by itself what is served; what it printed, and its error, are printed as JSON.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import sys
import time
import traceback
from collections import OrderedDict
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np

from freshet_serving import BadInput, ParentRolledBack, Publisher
from freshet_serving.processor.package.delta import read_delta
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.manifest_entries import Feature, Input, Output, TableEntry
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.repository.version import DENSE, table_file
from freshet_serving.processor.repository.version_writer import VersionWriter

MODEL, DIM, USERS, TAGS = "torched", 4, 40, 30
DENSE_SHAPES = {"fc.weight": [1, 2 * DIM], "fc.bias": [1]}


def write(repository, users_are_strings=False):
    """A version whose tables and weights are named as the state_dict has them; without executables."""
    draw = np.random.default_rng(0)
    features = [
        Feature("u", "string" if users_are_strings else "id", "u", table="user.weight", width=DIM),
        Feature("t", "ids", "t", table="tag.weight", offset=DIM, width=DIM),
    ]
    inputs = [Input("u", "string" if users_are_strings else "int64"), Input("t", "int64", ragged=True)]
    tables = [TableEntry("user.weight", DIM, USERS, hash_seed=3), TableEntry("tag.weight", DIM, TAGS)]
    with VersionWriter(Path(repository), MODEL, 1) as writer:
        for table in tables:
            rows = draw.standard_normal((table.rows, DIM)).astype(np.float32)
            writer.tensors(table_file(table.name), {"keys": np.arange(table.rows), "rows": rows})
        writer.tensors(DENSE, {n: draw.standard_normal(s).astype(np.float32) for n, s in DENSE_SHAPES.items()})
        writer.commit(
            Manifest(
                MODEL, 1, "test", time.time(), inputs, features, tables, [Output("score")], 2 * DIM, DENSE_SHAPES, {}
            )
        )


def make_model(sparse=True, max_norm=None):
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.user = torch.nn.Embedding(USERS, DIM, sparse=sparse, max_norm=max_norm)
            self.tag = torch.nn.EmbeddingBag(TAGS, DIM, mode="sum", sparse=sparse)
            self.fc = torch.nn.Linear(2 * DIM, 1)

        def forward(self, users, tags):
            return self.fc(torch.cat([self.user(users), self.tag(tags)], 1))[:, 0]

    torch.manual_seed(0)
    return Net()


def learn(model, optimizers, batches, seed=0, scheduler=None):
    import torch

    draw = torch.Generator().manual_seed(seed)
    for _ in range(batches):
        users = torch.randint(0, USERS // 2, (8,), generator=draw)
        tags = torch.randint(0, TAGS // 2, (8, 3), generator=draw)
        clicked = torch.rand(8, generator=draw).round()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(users, tags), clicked)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        if scheduler is not None:
            scheduler.step()


def assert_served(repository, model, without=()):
    publisher = Publisher(repository, MODEL)
    contents, state = publisher.served(), {n: t.detach().numpy() for n, t in model.state_dict().items()}
    for name in ("user.weight", "tag.weight"):
        keys, rows = contents.table(name)
        wanted = [k for k in range(len(state[name])) if name == "tag.weight" or k not in without]
        assert keys.tolist() == wanted, (name, keys)
        assert rows.tobytes() == state[name][wanted].tobytes(), name
    assert {n: a.tobytes() for n, a in contents.dense.items()} == {n: state[n].tobytes() for n in DENSE_SHAPES}


def roll_back(repository, step):
    ChangeLog.of(Repository(repository).version(MODEL)).rollback(step)


def optimizers(repository):
    """Every optimizer, exactly; prints which of them are told by their gradients."""
    import torch

    o = torch.optim
    cases = {
        "SGD": lambda sparse, dense: [o.SGD(sparse + dense, 0.5)],
        "SGD with momentum": lambda sparse, dense: [o.SGD(sparse + dense, 0.5, momentum=0.9)],
        "Adagrad": lambda sparse, dense: [o.Adagrad(sparse + dense, 0.5)],
        "SparseAdam and Adam": lambda sparse, dense: [o.SparseAdam(sparse), o.Adam(dense)],
        "SGD, dense": lambda sparse, dense: [o.SGD(sparse + dense, 0.5)],
        "Adagrad with decay, dense": lambda sparse, dense: [o.Adagrad(sparse + dense, 0.5, weight_decay=0.1)],
        "Adam, dense": lambda sparse, dense: [o.Adam(sparse + dense, 0.01)],
        "AdamW, dense": lambda sparse, dense: [o.AdamW(sparse + dense, 0.01)],
    }
    for name, make in cases.items():
        model = make_model(sparse="dense" not in name)
        chosen = make([model.user.weight, model.tag.weight], list(model.fc.parameters()))
        with Publisher(repository, MODEL).torch(model, chosen, every_batches=4) as hook:
            learn(model, chosen, 10, scheduler=o.lr_scheduler.StepLR(chosen[-1], 3))
            told = all(side.optimizer is not None for side in hook._sides)
        assert_served(repository, model)
        print(f"{name}: {'told' if told else 'compared'}")
        delta = read_delta(Path(repository) / MODEL / f"1/deltas/{hook.generation.step}.safetensors")
        assert not told or len(delta.tables["user.weight"].keys) < 17
        # Let go of: nothing is published any more.
        learn(model, chosen, 5)
        assert Publisher(repository, MODEL).generation == hook.generation


def lookups(repository):
    """Rows that are renormalised when they are looked up; weights that are used otherwise too; a loop without hook."""
    import torch

    model = make_model(sparse=False, max_norm=0.5)
    chosen = [torch.optim.SGD(model.parameters(), 0.5)]
    with Publisher(repository, MODEL).torch(model, chosen[0], every_batches=3):
        learn(model, chosen, 7)
        model(torch.tensor([30]), torch.tensor([[1]]))
    assert_served(repository, model)
    model = make_model(sparse=True)
    real = type(model).forward
    type(model).forward = lambda self, users, tags: real(self, users, tags) + self.user.weight.sum() * 0.01
    chosen = [torch.optim.SGD(model.parameters(), 0.5)]
    with Publisher(repository, MODEL).torch(model, chosen, every_batches=3):
        learn(model, chosen, 7)
    assert_served(repository, model)
    model = make_model()
    chosen = [torch.optim.SGD(model.parameters(), 0.5)]
    hook = Publisher(repository, MODEL).torch(model, every_batches=2)
    for seed in range(4):
        learn(model, chosen, 1, seed)
        hook.step()
    assert_served(repository, model)


def rollback(repository):
    """A rollback during training, removals, and a restart from a checkpoint."""
    import torch

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    hook = Publisher(repository, MODEL).torch(model, optimizer, every_batches=2)
    learn(model, [optimizer], 4)
    good = copy.deepcopy(model.state_dict())
    hook.remove("user.weight", [5, 39])
    learn(model, [optimizer], 4, seed=1)
    assert_served(repository, model, without={5, 39})
    checkpoint, generation = copy.deepcopy(model.state_dict()), str(hook.generation)
    roll_back(repository, 2)
    hook.publish()
    assert all(torch.equal(model.state_dict()[name], good[name]) for name in good)
    assert_served(repository, model)
    learn(model, [optimizer], 4, seed=2)
    assert_served(repository, model)

    roll_back(repository, 2)
    again = make_model()
    again.load_state_dict(checkpoint)
    try:
        Publisher(repository, MODEL).torch(again)
        raise AssertionError("undone weights were taken")
    except ParentRolledBack:
        pass
    optimizer = torch.optim.SGD(again.parameters(), 0.5)
    hook = Publisher(repository, MODEL, generation=generation).torch(again, optimizer, every_batches=2)
    assert all(torch.equal(again.state_dict()[name], good[name]) for name in good)
    learn(again, [optimizer], 4, seed=3)
    hook.close()
    assert_served(repository, again)
    fresh = make_model()
    Publisher(repository, MODEL).torch(fresh, begin="served")
    assert all(torch.equal(fresh.state_dict()[name], again.state_dict()[name]) for name in good)


def changed_by_hand(repository):
    """Weights that are loaded, rows that are reset, between the steps of an optimizer that reports touched rows."""
    import torch

    model, other = make_model(), make_model()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 1
    chosen = [torch.optim.SGD(model.parameters(), 0.5)]
    hook = Publisher(repository, MODEL).torch(model, chosen, every_batches=2)
    learn(model, chosen, 3)
    model.load_state_dict(other.state_dict())
    learn(model, chosen, 3)
    assert_served(repository, model)
    with torch.no_grad():
        model.user.weight[USERS - 1] = 0
    hook.publish()
    assert_served(repository, model)
    step = hook.generation.step
    delta = read_delta(Path(repository) / MODEL / f"1/deltas/{step}.safetensors")
    assert delta.tables["user.weight"].keys.tolist() == [USERS - 1]
    learn(model, chosen, 2)
    delta = read_delta(Path(repository) / MODEL / f"1/deltas/{step + 1}.safetensors")
    assert len(delta.tables["user.weight"].keys) < 17
    model.tag.load_state_dict(other.tag.state_dict())
    hook.close()
    assert_served(repository, model)


def refused(call):
    said = ""
    try:
        call()
    except BadInput as error:
        said = str(error)
    assert "\n" not in said
    return said


def replaced(repository):
    """Embeddings that the model has no longer: refused at a publication, or at the first step of a new optimizer."""
    import torch

    message = "'user.weight': expected the tensor that the model had when the hook was made, got another one"
    for new_optimizer in (False, True):
        model = make_model()
        chosen = [torch.optim.SGD(model.parameters(), 0.5)]
        hook = Publisher(repository, MODEL).torch(model, chosen, every_batches=2)
        learn(model, chosen, 2)
        before = hook.generation
        model.user = torch.nn.Embedding(2 * USERS, DIM, sparse=True)
        if new_optimizer and hasattr(import_module("torch.optim.optimizer"), "register_optimizer_step_post_hook"):
            chosen = [torch.optim.SGD(model.parameters(), 0.5)]
            assert message in refused(partial(learn, model, chosen, 1))
        else:
            assert message in refused(partial(learn, model, chosen, 2))
        assert message in refused(hook.close)
        assert Publisher(repository, MODEL).generation == before
    model = make_model()
    hook = Publisher(repository, MODEL).torch(model)
    del model.user
    assert "got none" in refused(hook.publish)


def wrapped_steps(repository):
    """Optimizers that never run the hooks of torch.optim.Optimizer, as torchrec's KeyedOptimizerWrapper."""
    import torch

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner):
            self.inner, self.state, self.defaults = inner, inner.state, {}
            self.param_groups = inner.param_groups
            self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = OrderedDict(), OrderedDict()

        def zero_grad(self, set_to_none=False):
            self.inner.zero_grad()

        def step(self, closure=None):
            self.inner.step(closure)

    model = make_model()
    chosen = [Wrapper(torch.optim.SGD(model.parameters(), 0.5))]
    hook = Publisher(repository, MODEL).torch(model, chosen, every_batches=3)
    learn(model, chosen, 3)
    assert hook.generation.step == 1
    assert_served(repository, model)


def unused(repository):
    """Parameters that inference does not use, and statistics that an exporter merged into other weights."""
    import torch

    def attach(model, **options):
        return Publisher(repository, MODEL).torch(model, **options)

    model = make_model()
    model.aux = torch.nn.Sequential(torch.nn.Linear(2 * DIM, 1), torch.nn.BatchNorm1d(1))
    assert "pass leave_out=['aux.0.weight']" in refused(lambda: attach(model))
    assert "got 'other'" in refused(lambda: attach(model, leave_out=["aux.*", "other"]))
    assert "got 'fc.bias' of the package" in refused(lambda: attach(model, leave_out=["aux.*", "fc.b*"]))
    hook = attach(model, leave_out=["aux.*"])
    hook.publish()
    with torch.no_grad():
        model.aux[0].weight += 1
        model.fc.bias += 1
    hook.publish()
    assert_served(repository, model)

    model = make_model()
    model.norm = torch.nn.BatchNorm1d(2 * DIM, affine=False)
    assert "buffer 'norm.running_mean' moves in training but is not among" in refused(lambda: attach(model))
    model.norm.eval()
    hook = attach(model)
    hook.publish()
    model.norm.running_mean += 1
    assert "export without constant folding" in refused(hook.publish)


def names(repository):
    """What does not fit is said; strings as keys; wrapped models."""
    import torch

    def refusal(model, **options):
        try:
            Publisher(repository, MODEL).torch(model, **options)
        except BadInput as error:
            return str(error)
        return ""

    model = make_model()
    assert "table 'user.weight' is keyed by strings: expected keys={'user.weight'" in refusal(model)
    words = {"user.weight": [f"u{i}" for i in range(USERS)]}
    hook = Publisher(repository, MODEL).torch(torch.nn.DataParallel(model), keys=words)
    hook.publish()
    publisher = Publisher(repository, MODEL)
    there, rows = publisher.served().rows("user.weight", publisher.ids("user.weight", ["u7"]))
    assert there.all()
    assert rows[0].tolist() == model.user.weight[7].tolist()
    assert "expected one of the tables, got 'usr'" in refusal(model, keys=words | {"usr": []})
    assert "expected at most 40" in refusal(model, keys={"user.weight": ["a"] * 41})
    model.extra = torch.nn.Linear(2, 2)
    assert "parameter 'extra.weight' is trained but is not among the package's" in refusal(model, keys=words)
    del model.extra
    model.fc = torch.nn.Linear(9, 1)
    assert "dense weight 'fc.weight': expected shape [1, 8], got [1, 9]" in refusal(model, keys=words)
    assert "expected parameters with the package's names" in refusal(torch.nn.BatchNorm1d(3, affine=False))


CASES = (optimizers, lookups, rollback, names, changed_by_hand, replaced, wrapped_steps, unused)


def run(case, repository):
    """Return what a case printed, and the stack of its error or ""."""
    write(repository, users_are_strings=case is names)
    said, error = io.StringIO(), ""
    with contextlib.redirect_stdout(said):
        try:
            case(repository)
        except Exception:
            error = traceback.format_exc()
    return {"said": said.getvalue().splitlines(), "error": error}


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    print(json.dumps({case.__name__: run(case, str(Path(sys.argv[1]) / case.__name__)) for case in CASES}))
