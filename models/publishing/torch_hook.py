"""Publish what a PyTorch training loop changes, as a hook after the optimizers' steps.

    hook = Publisher("repository", "ctr").torch(model, optimizer)
    ... the unchanged loop ...
    hook.close()

Tables are the embedding matrices that the package has as tables, whatever uses them (Embedding, EmbeddingBag, a custom
gather), named as in the state_dict. All other parameters and buffers that the package has are dense weights. Touched
ids are collected if gradients are sparse (`Embedding(..., sparse=True)`) and the optimizer moves only touched rows: SGD
without momentum and decay, Adagrad without decay, SparseAdam. With dense gradients every optimizer step passes over the
whole table anyway, so all rows are compared with a copy of the published state.

Every change is published or refused
- A tensor changed in place other than by the optimizer's step (load_state_dict, rows that are reset) has another
  version than after the last step. Then the whole table is compared with the served one, once. Only writes through
  `.data`, which PyTorch does not count, need compare=True.
- A tensor that the model no longer has (a replaced embedding, load_state_dict(assign=True)) is refused before anything
  is published.
- An optimizer whose class does not run step hooks (torchrec's KeyedOptimizerWrapper) has its step wrapped.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib
import types
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from freshet_serving.models.publishing.key_ids import noted_constants, takes_integers
from freshet_serving.models.publishing.model_tracker import (
    EVERY_S,
    MODEL,
    ModelTracker,
    PublishInterval,
    SupportsPublish,
    TrackedTable,
)
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import RECORD, weight_rows
from freshet_serving.processor.repository import Float32s, Int64s

# By optimizer: options that must be zero for rows without a gradient to stay unchanged.
TOUCHED_ALONE = {"SGD": ("momentum", "weight_decay"), "Adagrad": ("weight_decay",), "SparseAdam": ()}


class TorchHook:
    """Publishes a model's weights as they change. A context manager that publishes the last changes and detaches."""

    def __init__(
        self,
        publisher: SupportsPublish,
        model: Any,
        optimizer: Any = None,
        every_s: float = EVERY_S,
        every_batches: int | None = None,
        keys: Mapping[str, Any] | None = None,
        begin: str = MODEL,
        compare: bool = False,
        leave_out: Sequence[str] = (),
    ) -> None:
        """Attach a hook to a model's optimizers.

        Args:
            model: The PyTorch model.
            optimizer: One, or several that step in this order; None if the loop calls step().
            every_s: Seconds between publications.
            every_batches: Batches between publications; replaces every_s.
            keys: By table, the key of every row (strings, if the table is keyed by strings), None for the row that all
                keys without one share; by default row numbers.
            begin: "model" publishes the model's weights at the beginning; "served" loads the served weights into the
                model.
            compare: Ignore gradients and compare all rows.
            leave_out: Names of parameters and buffers that inference does not use, `*` for any characters: they may
                change without being published.

        Raises:
            BadInput: The model does not fit the package.
            ParentRolledBack: As Publisher.check_start().
        """
        self._optimizers = (
            [] if optimizer is None else list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
        )
        self._model = model
        tables, dense, left_out = _matched(publisher, model, _without(_state_of(model), leave_out, publisher))
        self._published = {entry.name: parameter for entry, parameter in tables} | dense
        self._sides: list[_TorchMatrix] = []
        tracked = []
        for entry, parameter in tables:
            if entry.name in publisher.manifest.stage_weights:
                side: _TorchMatrix = _TorchStageWeight(parameter, entry.dim)
            else:
                moved_by = None if compare else self._optimizer_of(parameter)
                side = _TorchMatrix(parameter, moved_by, _renormalised(model, parameter))
            self._sides.append(side)
            ids, rows = _keys_of(publisher, entry.name, parameter.numel() // entry.dim, keys or {})
            tracked.append(TrackedTable(entry, ids, rows, side, compare=side.optimizer is None))
        unknown = (keys or {}).keys() - {entry.name for entry, _ in tables}
        if unknown:
            raise BadInput(f"keys: expected one of the tables, got {sorted(unknown)[0][:64]!r}")
        self._tracker = ModelTracker(
            publisher, tracked, {name: _TorchWeight(t) for name, t in dense.items()}, PublishInterval(every_s,
            every_batches), begin, {name: _TorchWeight(t) for name, t in left_out.items()}, self._check_tensors,
        )  # fmt: skip
        self._handles: list[Any] = []
        self._open = True
        self._tracker.open()
        for each in self._optimizers:
            self._install(each)
        if self._optimizers:
            self._watch_others()

    @property
    def generation(self) -> Generation:
        """Generation that the model is based on.

        Save it with the model's weights, and pass it to Publisher(generation=...) when they are loaded.
        """
        return self._tracker.publisher.generation

    def step(self, batches: int = 1) -> None:
        """Count trained batches, and publish when it is time. Called automatically if the optimizers were given.

        Raises:
            BadInput: The model has another tensor in place of one that the hook publishes.
        """
        self._tracker.tick(batches)

    def publish(self, event_time: tuple[float, float] | None = None, events: int = 0) -> Generation:
        """Publish all changes now. Raises as Publisher.publish().

        Args:
            event_time: Times of the first and the last event, Unix seconds.

        Returns:
            The generation that the model is based on afterwards.
        """
        return self._tracker.publish(event_time, events)

    def remove(self, table: str, keys: Any) -> None:
        """Remove rows from the served table with the next publication, until restore().

        Removals are not saved with the weights: repeat them after a restart, before the first publication.

        Args:
            keys: Keys of the rows.
        """
        self._tracker.remove(table, keys)

    def restore(self, table: str, keys: Any) -> None:
        """Serve rows again that remove() took out.

        Args:
            keys: Keys of the rows.
        """
        self._tracker.restore(table, keys)

    def close(self) -> None:
        """Publish the last changes, and detach from the optimizers."""
        self._let_go()
        self._tracker.publish()

    def __enter__(self) -> TorchHook:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._let_go()
        if kind is None:
            self._tracker.publish()

    def _check_tensors(self) -> None:
        """Detect changes outside steps; raise BadInput if the model no longer has a published tensor."""
        state = _state_of(self._model)
        for name, tensor in self._published.items():
            if state.get(name) is not tensor:
                raise BadInput(
                    f"{name!r}: expected the tensor that the model had when the hook was made, got "
                    f"{'another one' if name in state else 'none'}: make a new hook and a new optimizer"
                )
        for side, table in zip(self._sides, self._tracker.tables.values()):
            if side.take_foreign() and not table.compare:
                table.forget()

    def _optimizer_of(self, parameter: Any) -> Any:
        """Return the optimizer and the group that move a parameter; None unless there is exactly one."""
        groups = [
            (optimizer, group)
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            if any(p is parameter for p in group["params"])
        ]
        return groups[0] if len(groups) == 1 else None

    def _install(self, optimizer: Any) -> None:
        """Register for every step of an optimizer, without keeping this hook alive.

        PyTorch 1 cannot, and optimizers without Optimizer.__init__() (torchrec's) ignore it: their step is wrapped.
        """
        hook = weakref.ref(self)

        def stepping(*_: Any) -> None:
            alive = hook()
            if alive is not None and alive._open:
                for side in alive._sides:
                    side.note_version()

        def stepped(optimizer: Any, *_: Any) -> None:
            alive = hook()
            if alive is not None and alive._open:
                alive._stepped(optimizer)

        if hasattr(optimizer, "register_step_post_hook") and getattr(type(optimizer).step, "hooked", False):
            self._handles.append(optimizer.register_step_pre_hook(stepping))
            self._handles.append(optimizer.register_step_post_hook(stepped))
            return
        real = optimizer.step

        @functools.wraps(real)
        def step(self: Any, *arguments: Any, **named: Any) -> Any:
            stepping()
            result = real(*arguments, **named)
            stepped(self)
            return result

        # A bound method, because schedulers inspect it and may wrap it, so it is never removed.
        optimizer.step = types.MethodType(step, optimizer)

    def _watch_others(self) -> None:
        """Check tensors at a foreign optimizer's first step: replaced embeddings have one. Not with PyTorch 1."""
        module = importlib.import_module("torch.optim.optimizer")
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is None:
            return
        hook, seen = weakref.ref(self), weakref.WeakSet(self._optimizers)

        def stepped(optimizer: Any, *_: Any) -> None:
            alive = hook()
            if alive is not None and alive._open and optimizer not in seen:
                seen.add(optimizer)
                alive._check_tensors()

        self._handles.append(register(stepped))

    def _let_go(self) -> None:
        self._open = False
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _stepped(self, optimizer: Any) -> None:
        for side in self._sides:
            side.collect(optimizer)
        if optimizer is self._optimizers[-1]:
            self.step()


class _TorchMatrix:
    """An embedding matrix, and its rows that had a gradient; its version shows if rows moved without one."""

    def __init__(self, parameter: Any, moved_by: Any, renormalised: bool) -> None:
        self._parameter = parameter
        self.optimizer = None if renormalised or moved_by is None or not _touched_alone(*moved_by) else moved_by
        self._mask: Any = None
        self._version, self._foreign = parameter._version, False

    def note_version(self) -> None:
        """Note changes since the last step; call before the next."""
        self._foreign |= self._parameter._version != self._version
        self._version = self._parameter._version

    def take_foreign(self) -> bool:
        """Return True if something other than a step has changed the matrix since the last call."""
        self.note_version()
        foreign, self._foreign = self._foreign, False
        return foreign

    def collect(self, optimizer: Any) -> None:
        self._version = self._parameter._version
        if self.optimizer is None or self.optimizer[0] is not optimizer:
            return
        gradient = self._parameter.grad
        if gradient is None:
            return
        if not gradient.is_sparse or not _touched_alone(*self.optimizer):
            self.optimizer = self._mask = None
            return
        if self._mask is None:
            self._mask = _torch().zeros(len(self._parameter), dtype=_torch().bool, device=self._parameter.device)
        self._mask[gradient._indices()[0]] = True

    def touched(self) -> Int64s | None:
        if self.optimizer is None:
            return None
        if self._mask is None:
            return np.empty(0, np.int64)
        rows = self._mask.nonzero()[:, 0].cpu().numpy()
        self._mask.zero_()
        return np.asarray(rows, np.int64)

    def read(self, rows: Int64s) -> Float32s:
        with _torch().no_grad():
            at = _torch().from_numpy(rows).to(self._parameter.device)
            return np.asarray(self._parameter.detach().index_select(0, at).float().cpu().numpy(), np.float32)

    def write(self, rows: Int64s, values: Float32s) -> None:
        with _torch().no_grad():
            at = _torch().from_numpy(rows).to(self._parameter.device)
            self._parameter[at] = _torch().from_numpy(np.ascontiguousarray(values)).to(self._parameter)
        self._version = self._parameter._version


class _TorchStageWeight(_TorchMatrix):
    """A parameter or buffer of any shape that the package has as rows of its last dimension."""

    def __init__(self, parameter: Any, dim: int) -> None:
        super().__init__(parameter, None, False)
        self._dim = dim

    def read(self, rows: Int64s) -> Float32s:
        values = self._parameter.detach().float().cpu().numpy().reshape(-1, self._dim)
        return np.asarray(values[rows], np.float32)

    def write(self, rows: Int64s, values: Float32s) -> None:
        whole = self._parameter.detach().float().cpu().numpy().reshape(-1, self._dim).copy()
        whole[rows] = values
        with _torch().no_grad():
            self._parameter.copy_(_torch().from_numpy(whole.reshape(self._parameter.shape)).to(self._parameter))
        self._version = self._parameter._version


class _TorchWeight:
    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def read(self) -> Float32s:
        return np.array(self._tensor.detach().float().cpu().numpy(), np.float32)

    def write(self, value: Float32s) -> None:
        with _torch().no_grad():
            self._tensor.copy_(_torch().from_numpy(np.array(value, np.float32)).to(self._tensor))


def _torch() -> Any:
    import torch

    return torch


def _plain(name: str) -> str:
    """Strip the prefixes of torch.compile and data parallelism."""
    return name.removeprefix("_orig_mod.").removeprefix("module.").removeprefix("_orig_mod.")


def _state_of(model: Any) -> dict[str, Any]:
    """Return a model's parameters and buffers by name, not copied."""
    return {
        _plain(name): tensor
        for name, tensor in model.state_dict(keep_vars=True).items()
        if hasattr(tensor, "requires_grad")
    }


def _without(state: Mapping[str, Any], leave_out: Sequence[str], publisher: SupportsPublish) -> dict[str, Any]:
    """Return a model's state without `leave_out`; raise BadInput if that is absent, or belongs to the package."""
    manifest = publisher.manifest
    served = {table.name for table in manifest.tables} | set(manifest.dense)
    patterns = [leave_out] if isinstance(leave_out, str) else list(leave_out)
    left = set()
    for pattern in patterns:
        names = fnmatch.filter(state, pattern)
        if not names:
            raise BadInput(f"leave_out: expected one of the model's parameters and buffers, got {pattern[:64]!r}")
        left.update(names)
    if both := sorted(left & (served | noted_constants(manifest))):
        raise BadInput(f"leave_out: expected what inference does not use, got {both[0]!r} of the package")
    return {name: tensor for name, tensor in state.items() if name not in left}


def _advice(manifest: Any, state: Mapping[str, Any]) -> str:
    """Return what to do about a tensor `{name}` that the package lacks.

    Leaving it out is safe only if the whole package has its names in the model: else it may have been merged.
    """
    import_note = manifest.notes.get("import")
    merged = isinstance(import_note, dict) and import_note.get("merged")
    unnoted = manifest.stage is not None and not (isinstance(import_note, dict) and "constants" in import_note)
    unknown = {table.name for table in manifest.tables if table.dtype != RECORD} | set(manifest.dense)
    if unnoted:
        return "it may be a constant in the package's stage: import the model again, which makes it a weight"
    if merged or unknown - state.keys():
        return (
            "the exporter merged it, or others, into weights that have no name in the model: export without constant "
            "folding (do_constant_folding=False) and import again"
        )
    return (
        "if inference does not use it, pass leave_out=[{name!r}]; if the exporter merged it into another weight, "
        "export without constant folding and import again"
    )


def _touched_alone(optimizer: Any, group: Mapping[str, Any]) -> bool:
    """Return True if rows without a gradient stay unchanged under the group's current options."""
    kind = type(optimizer)
    options = TOUCHED_ALONE.get(kind.__name__) if kind.__module__.startswith("torch.optim.") else None
    return options is not None and not any(group.get(option) for option in options)


def _renormalised(model: Any, parameter: Any) -> bool:
    return any(
        getattr(module, "weight", None) is parameter and getattr(module, "max_norm", None) is not None
        for module in model.modules()
    )


def _running_statistics(model: Any) -> set[str]:
    """Return the names of the buffers that batch normalisation moves in training."""
    return {
        _plain(f"{name}.{buffer}" if name else buffer)
        for name, module in model.named_modules()
        if module.training and getattr(module, "track_running_stats", False)
        for buffer in ("running_mean", "running_var")
        if getattr(module, buffer, None) is not None
    }


def _matched(
    publisher: SupportsPublish, model: Any, state: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Return table entries with matrices, dense weights by name, and tensors that the package lacks; check shapes."""
    manifest = publisher.manifest
    entries = {table.name: table for table in manifest.tables}
    for name, tensor in state.items():
        if hasattr(tensor, "local_shards") or hasattr(tensor, "to_local"):
            raise BadInput(
                f"{name!r}: expected a whole tensor, got a {type(tensor).__name__}: publish from rows instead"
            )
    tables, dense, left_out = [], {}, {}
    advice = _advice(manifest, state)
    for name, tensor in state.items():
        if name in entries:
            if name in manifest.stage_weights:
                rows = entries[name].rows, entries[name].dim
                if weight_rows(tensor.shape) != rows:
                    got = list(tensor.shape)
                    raise BadInput(f"weight {name!r}: expected {rows[0]} rows of {rows[1]} numbers, got shape {got}")
            elif tuple(tensor.shape[1:]) != (entries[name].dim,):
                raise BadInput(
                    f"table {name!r}: expected rows of {entries[name].dim} numbers, got {list(tensor.shape[1:])}"
                )
            if tensor.requires_grad:
                manifest.check_reachable(name)
            tables.append((entries[name], tensor))
        if name in manifest.dense:
            if list(tensor.shape) != manifest.dense[name]:
                expected, got = manifest.dense[name], list(tensor.shape)
                raise BadInput(f"dense weight {name!r}: expected shape {expected}, got {got}")
            dense[name] = tensor
        if any(tensor is state.get(names) for names in (*entries, *manifest.dense)):
            # A package has one name of tied weights.
            continue
        if tensor.requires_grad:
            if name in noted_constants(manifest):
                raise BadInput(
                    f"parameter {name!r} is trained, and inference computes with it, but the package has it as a "
                    "constant, which no delta changes: import the trained model as a new version, or freeze it "
                    "(requires_grad_(False))"
                )
            names = ", ".join([*entries, *manifest.dense])[:300] or "none"
            raise BadInput(
                f"parameter {name!r} is trained but is not among the package's tables and weights ({names}): "
                f"{advice.format(name=name)}"
            )
        if tensor.is_floating_point():
            left_out[name] = tensor
    missing = (entries.keys() | manifest.dense.keys()) - state.keys()
    if missing and not tables and not dense:
        raise BadInput(f"model: expected parameters with the package's names, such as {sorted(missing)[0]!r}")
    if merged := sorted(_running_statistics(model) & left_out.keys()):
        raise BadInput(
            f"buffer {merged[0]!r} moves in training but is not among the package's weights: call eval() on its module "
            f"if it stays as it is; {advice.format(name=merged[0])}"
        )
    return tables, dense, left_out


def _keys_of(
    publisher: SupportsPublish, table: str, rows: int, keys_by_table: Mapping[str, Any]
) -> tuple[Int64s, Int64s]:
    """Return keys of rows, and the rows that they belong to."""
    if table in keys_by_table:
        keys = keys_by_table[table]
        if len(keys) > rows:
            raise BadInput(f"keys of {table!r}: expected at most {rows} (one for each row), got {len(keys)}")
        return publisher.ids(table, keys), np.arange(len(keys))
    if not takes_integers(publisher.manifest, table):
        raise BadInput(f"table {table!r} is keyed by strings: expected keys={{{table!r}: [the string of each row]}}")
    return np.arange(rows), np.arange(rows)
