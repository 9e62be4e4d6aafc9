"""FuxiCTR's DCN-v2 in the quality race; run in an environment with fuxictr and torch.

Arguments: a file of rows, batch rows, rate, regularizer of embeddings, seed, epochs. Writes a Run as JSON to stdout.
fuxictr 2.3.10 as PyPI has it comes with DCNv2 for sequences of items alone: its layers, initial values, fit and
early stopping are taken, and its forward as FuxiCTR has it for rows without sequences.
"""

# mypy: ignore-errors

import json
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import numpy as np
import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch.models import BaseModel
from fuxictr.pytorch.torch_utils import seed_everything
from model_zoo.LongCTR.DCNv2 import DCNv2

from loadtest.bench.training.fuxictr_fit import fit_and_tell

DIM, HIDDEN, CROSS_LAYERS = 16, [256, 128, 64], 3


class PlainDCNv2(DCNv2):
    get_inputs, get_labels, train_step = BaseModel.get_inputs, BaseModel.get_labels, BaseModel.train_step

    def forward(self, inputs):
        x = self.embedding_layer(self.get_inputs(inputs), flatten_emb=True)
        top = torch.cat([self.crossnet(x), self.parallel_dnn(x)], dim=-1)
        return {"y_pred": self.output_activation(self.fc(top))}


class Loader:
    """Batches of a part of the rows, by column, as FuxiCTR's own loaders give them."""

    def __init__(self, rows, names, part, batch_rows, shuffled):
        columns = {name: torch.from_numpy(rows[f"{part}.{name}"]) for name in names}
        self.columns = {name: c[:, 0] if c.shape[1] == 1 else c for name, c in columns.items()}
        self.rows, self.batch_rows, self.shuffled = len(columns["label"]), batch_rows, shuffled

    def __len__(self):
        return -(-self.rows // self.batch_rows)

    def __iter__(self):
        order = torch.randperm(self.rows) if self.shuffled else torch.arange(self.rows)
        for at in order.split(self.batch_rows):
            yield {name: column[at] for name, column in self.columns.items()}


def feature_map(rows, sizes, folder):
    features = FeatureMap("movielens", folder)
    features.labels, features.default_emb_dim = ["label"], DIM
    for name, size in sizes.items():
        longest = rows[f"learned.{name}"].shape[1]
        features.features[name] = {"type": "categorical", "source": "", "vocab_size": size}
        if longest > 1:
            mean = {"padding_idx": 0, "max_len": longest, "feature_encoder": "layers.MaskedAveragePooling()"}
            features.features[name] |= {"type": "sequence", **mean}
    features.num_fields = len(sizes)
    return features


def main():
    batch_rows, seed, most_epochs = (int(sys.argv[n]) for n in (2, 5, 6))
    rate, regularizer = map(float, sys.argv[3:5])
    rows = np.load(sys.argv[1])
    sizes = json.loads(str(rows["sizes"]))
    seed_everything(seed)
    with tempfile.TemporaryDirectory() as folder:
        features = feature_map(rows, sizes, folder)
        (Path(folder) / features.dataset_id).mkdir()
        model = PlainDCNv2(
            features,
            embedding_dim=DIM,
            parallel_dnn_hidden_units=HIDDEN,
            num_cross_layers=CROSS_LAYERS,
            learning_rate=rate,
            embedding_regularizer=regularizer or None,
            optimizer="adam",
            loss="binary_crossentropy",
            metrics=["AUC"],
            early_stop_patience=1,
            model_root=folder,
            verbose=0,
        )
        fit_and_tell(model, partial(Loader, rows, [*sizes, "label"]), batch_rows, most_epochs)


if __name__ == "__main__":
    main()
