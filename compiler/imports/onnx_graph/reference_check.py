"""Compare the translation of an ONNX file with ONNX Runtime, on samples.

ONNX Runtime gets only the nodes that the outputs are computed from, after the untrusted file has been checked, with the
data that was read then; nothing is folded, and the run is stopped after a time limit. Values that ONNX leaves undefined
(the mean of an empty bag, which PyTorch defines as zeros) are not compared.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from freshet_serving.compiler.imports.error_reason import reason_of
from freshet_serving.compiler.imports.feeds import plain
from freshet_serving.compiler.imports.onnx_graph.bags import Offsets
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import (
    OnnxModel,
    load_proto,
    needed_messages,
    refill,
    types_held,
)
from freshet_serving.compiler.imports.precision import Precision
from freshet_serving.processor.errors import BadInput

RELATIVE, ABSOLUTE = 1e-4, 1e-5
MAX_S = 60.0
FATAL = 4

Feeds = Mapping[str, np.ndarray[Any, Any]]


class OnnxReference:
    def __init__(self, path: Path, model: OnnxModel, offsets: Sequence[Offsets]) -> None:
        self._path, self._model = path, model
        self._offsets = {pair.ids: pair for pair in offsets}
        self._precision = Precision()

    def check(self, samples: Sequence[tuple[Feeds, Feeds]]) -> list[str]:
        """Compare outputs with the file's own on samples (feeds by node, outputs by name); BadInput if they differ.

        Return notes: that the outputs could not be compared, if ONNX Runtime does not accept the file.
        """
        try:
            session = self._session()
        except Exception as error:
            return [f"not compared with ONNX Runtime, which rejects the file: {reason_of(error)}"]
        for feeds, outputs in samples:
            full, fed = self._fed(feeds)
            if not full.any():
                continue
            names = [name for name in outputs if name in self._model.body.outputs]
            try:
                expected = self._run(session, names, fed)
            except Exception as error:
                return [f"not compared with ONNX Runtime, which fails on samples: {reason_of(error)}"]
            for name, array in zip(names, expected):
                self._compare(name, np.asarray(outputs[name], np.float64), np.asarray(array, np.float64), full)
        return []

    def _compare(self, name: str, got: Any, expected: Any, full: Any) -> None:
        if got.ndim and len(got) == len(full):
            got = got[full]
        defined = ~np.isnan(expected)
        if got.shape != expected.shape:
            raise BadInput(
                f"output {name[:64]!r}: expected shape {list(expected.shape)} as ONNX Runtime's, got {list(got.shape)}"
            )
        if not self._precision.agree(got[defined], expected[defined], RELATIVE, ABSOLUTE):
            worst = float(np.abs(got[defined] - expected[defined]).max())
            raise BadInput(f"output {name[:64]!r} differs by {worst:.3g} from ONNX Runtime's{self._precision.advice}")

    def _fed(self, feeds: Feeds) -> tuple[Any, dict[str, Any]]:
        """Return which rows have no empty bag, and these rows as the file's inputs."""
        pairs = self._offsets
        lengths = {name: np.diff(feeds[f"input/{plain(name)}/row_splits"]) for name in pairs}
        rows = [len(n) for n in lengths.values()]
        rows += [len(v) for k, v in feeds.items() if not k.endswith(("/values", "/row_splits"))]
        full = np.ones(rows[0], bool)
        for each in lengths.values():
            full &= each > 0
        kinds = {info.name: info.dtype for info in self._model.inputs}
        fed: dict[str, Any] = {}
        for name, pair in pairs.items():
            fed[name] = feeds[f"input/{plain(name)}/values"][np.repeat(full, lengths[name])]
            splits = np.concatenate([[0], np.cumsum(lengths[name][full])])
            fed[pair.offsets] = (splits if pair.ends else splits[:-1]).astype(kinds[pair.offsets])
        for info in self._model.inputs:
            if info.name not in fed:
                fed[info.name] = feeds[f"input/{plain(info.name)}"][full]
        return full, fed

    def _session(self) -> Any:
        proto = load_proto(self._path)
        self._precision = Precision.of(types_held(proto.graph))
        refill(proto.graph.node, needed_messages(proto.graph, (info.name for info in proto.graph.output)))
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads, options.log_severity_level = 2, FATAL
        outside = [t.name for t in proto.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
        # The arrays must outlive the constructor below.
        arrays = [np.asarray(self._model.body.weights[name], order="C") for name in outside]
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in arrays]
        if outside:
            options.add_external_initializers(outside, values)
        data = proto.SerializeToString()
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def _run(self, session: Any, names: list[str], fed: Mapping[str, Any]) -> Any:
        inputs = {info.name for info in session.get_inputs()}
        options = onnxruntime.RunOptions()
        options.log_severity_level = FATAL
        timer = threading.Timer(MAX_S, setattr, (options, "terminate", True))
        timer.start()
        try:
            return session.run(names, {name: value for name, value in fed.items() if name in inputs}, options)
        finally:
            timer.cancel()
