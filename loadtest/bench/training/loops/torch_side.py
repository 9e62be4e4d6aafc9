"""PyTorch's side of the training loops: exports, trains with the hook attached, and scores.

Run with a Python that has torch, onnx and onnxscript, from the root of the repository.
"""

# mypy: ignore-errors

from pathlib import Path

import numpy as np
import torch

from freshet_serving import Publisher
from loadtest.bench.training.loops.rows import BAG, FREE, IDS, SPLITS, draw_all, request_lengths
from loadtest.bench.training.loops.side import serve
from loadtest.bench.training.loops.torch_networks import NETWORKS
from loadtest.bench.training.loops.torch_sequences import SEQUENCES

BATCHES, ROWS, REQUEST_ROWS, SEED = 2, 32, 7, 5
LONGEST = 64


class TorchSide:
    def build(self, network, folder):
        self.network = {one.name: one for one in (*NETWORKS, *SEQUENCES)}[network]
        self.random = np.random.default_rng(SEED)
        torch.manual_seed(SEED)
        self.model = self.network.make()
        self.optimizers = self.network.optimizers(self.model)
        # Trained, because an exporter merges the equal tensors of a new network.
        for _ in range(3):
            self.train()
        return export(self.network, self.model, folder, self.random)

    def attach(self, repository, model):
        self.model.train()
        self.hook = Publisher(repository, model).torch(self.model, self.optimizers, every_batches=BATCHES)

    def learn(self):
        for _ in range(BATCHES):
            self.train()
        return str(self.hook.generation)

    def train(self):
        length = int(self.random.choice(self.network.trained_lengths))
        rows = draw_all(self.network.columns, ROWS, length, self.random, request=False)
        outputs = forward(self.model.train(), tensors(rows))
        loss = sum(((out - torch.from_numpy(self.random.integers(0, 2, out.shape))) ** 2).mean() for out in outputs)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()

    def scored(self):
        for length in request_lengths(self.network.columns, self.network.takes_none):
            rows = draw_all(self.network.columns, REQUEST_ROWS, length, self.random, request=True)
            known = dict(rows)
            for column in self.network.columns:
                if column.kind == IDS and column.beyond:
                    known[column.name] = np.where(rows[column.name] < column.size, rows[column.name], 0)
            with torch.no_grad():
                outputs = forward(self.model.eval(), tensors(known))
            yield rows, {name: out.numpy() for name, out in zip(self.network.outputs, outputs)}


def tensors(rows):
    """Rows as the network's arguments: a bag's ids, then the offset of each list."""
    return [torch.from_numpy(array[:-1] if name.endswith(SPLITS) else array) for name, array in rows.items()]


def forward(model, arguments):
    outputs = model(*arguments)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def export(network, model, folder, random):
    path = Path(folder) / "model.onnx"
    rows = draw_all(network.columns, 4, network.trained_lengths[-1], random, request=False)
    arguments = tuple(tensors(rows))
    free = {column.name for column in network.columns if column.kind == FREE}
    bags = {column.name for column in network.columns if column.kind == BAG}
    names = [name.replace(SPLITS, "_offsets") for name in rows]
    options = {"input_names": names, "output_names": list(network.outputs)}
    model.eval()
    if network.dynamo:
        dim = torch.export.Dim
        batch, length = dim("batch", min=2, max=4096), dim("length", min=2, max=LONGEST)
        shapes = {
            name: {0: dim.DYNAMIC} if name in bags else {0: batch} | ({1: length} if name in free else {})
            for name in names
        }
        options |= {"dynamic_shapes": tuple(shapes.values()), "opset_version": 18}
        torch.onnx.export(
            model, arguments, str(path), dynamo=True, optimize=network.optimised, external_data=False, **options
        )
    else:
        axes = {
            name: {0: f"{name}_entries"}
            if name in bags
            else {0: "batch"} | ({1: f"{name}_length"} if name in free else {})
            for name in names
        }
        axes |= {name: {0: "batch"} for name in network.outputs}
        options |= {"dynamic_axes": axes, "opset_version": 17, "do_constant_folding": network.optimised}
        torch.onnx.export(model, arguments, str(path), dynamo=False, **options)
    return path


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(TorchSide())
