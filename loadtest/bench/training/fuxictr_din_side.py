"""FuxiCTR's DIN in the sequence race; run in an environment with fuxictr and torch.

Arguments: a file of rows, batch rows, rate, regularizer of embeddings, seed, epochs. Writes a Run as JSON to stdout.
With 0 epochs it answers how long steps take (turns). Everything is fuxictr 2.3.10's own: layers, initial values, fit
and early stopping; ReLU in place of Dice.
"""

# mypy: ignore-errors

import itertools
import json
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import numpy as np
import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch.torch_utils import seed_everything
from model_zoo.LongCTR.DIN.DIN import DIN

from loadtest.bench.training.turns import serve

DIM, HIDDEN, ATTENTION = 16, [128, 64], [64]
SCORED_ROWS = 8192


class Loader:
    """Batches of a part of the rows as FuxiCTR's loaders for sequences give them: features, items and the mask."""

    def __init__(self, rows, part, batch_rows, shuffled):
        self.columns = {name: torch.from_numpy(rows[f"{part}.{name}"]) for name in ("user_id", "label")}
        movie, history = (torch.from_numpy(rows[f"{part}.{name}"]) for name in ("movie_id", "history"))
        self.items, self.mask = torch.cat([history, movie[:, None]], dim=1), history > 0
        self.rows, self.batch_rows, self.shuffled = len(movie), batch_rows, shuffled

    def __len__(self):
        return -(-self.rows // self.batch_rows)

    def __iter__(self):
        order = torch.randperm(self.rows) if self.shuffled else torch.arange(self.rows)
        for at in order.split(self.batch_rows):
            features = {name: column[at] for name, column in self.columns.items()}
            yield features, {"movie_id": self.items[at].flatten()}, self.mask[at]


def main():
    batch_rows, seed, most_epochs = (int(sys.argv[n]) for n in (2, 5, 6))
    rate, regularizer = map(float, sys.argv[3:5])
    rows = np.load(sys.argv[1])
    sizes = json.loads(str(rows["sizes"]))
    seed_everything(seed)
    with tempfile.TemporaryDirectory() as folder:
        features = FeatureMap("movielens", folder)
        features.labels, features.default_emb_dim, features.num_fields = ["label"], DIM, len(sizes)
        for name, source in (("user_id", "user"), ("movie_id", "item")):
            features.features[name] = {"type": "categorical", "source": source, "vocab_size": sizes[name]}
        (Path(folder) / features.dataset_id).mkdir()
        model = DIN(
            features,
            dnn_hidden_units=HIDDEN,
            attention_hidden_units=ATTENTION,
            attention_hidden_activations="ReLU",
            learning_rate=rate,
            embedding_dim=DIM,
            embedding_regularizer=regularizer or None,
            optimizer="adam",
            loss="binary_crossentropy",
            metrics=["AUC"],
            early_stop_patience=1,
            model_root=folder,
            verbose=0,
        )
        learned = Loader(rows, "learned", batch_rows, True)
        if not most_epochs:
            serve(partial(learn, model, learned))
            return
        choosing, last = (Loader(rows, part, SCORED_ROWS, False) for part in ("choosing", "last"))
        model.fit(learned, epochs=most_epochs, validation_data=choosing)
        auc, chosen = (model.evaluate(part)["AUC"] for part in (last, choosing))
        ran = model._epoch_index + 1 - model._stopping_steps
        print(json.dumps({"auc": auc, "epochs": ran, "choosing": chosen}))


def learn(model, loader, steps):
    """Learn so many steps as FuxiCTR's train_epoch does, epoch after epoch; return the last loss."""
    model.train()
    # As its fit has it.
    model._max_gradient_norm = 10.0
    whole = loader.rows // loader.batch_rows
    batches = itertools.chain.from_iterable(itertools.islice(loader, whole) for _ in range(-(-steps // whole)))
    for model._batch_index, batch in enumerate(itertools.islice(batches, steps)):
        loss = model.train_step(batch).item()
    return loss


if __name__ == "__main__":
    main()
