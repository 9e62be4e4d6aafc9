"""RecTools' SASRec in the next-item race; run in an environment with rectools and torch.

Arguments: a file of LeaveOneOut arrays, seed, epochs, the most events of a history. Prints a line of JSON: hit rate and
NDCG. Everything is rectools 0.19's own but loss, widths, length and rate, which are the race's.
"""

# mypy: ignore-errors

import json
import sys
import warnings

import numpy as np
import pandas as pd
import torch
from leave_one_out import LeaveOneOut
from pytorch_lightning import Trainer, seed_everything
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import SASRecModel

DIM, LAYERS, HEADS, DROPOUT, BATCH, RATE = 50, 2, 1, 0.2, 128, 0.001


def trainer():
    quiet = ("enable_progress_bar", "enable_model_summary", "logger", "enable_checkpointing")
    return Trainer(max_epochs=10_000, accelerator="cpu", devices=1, **dict.fromkeys(quiet, False))


def vectors(model, dataset, split):
    """Return the users' and items' vectors in the order of the split."""
    shown = model.data_preparator.transform_dataset_u2i(dataset, np.arange(len(split.targets)))
    loader = model.data_preparator.get_dataloader_recommend(shown, 256)
    users, items = (part.cpu() for part in model.lightning_model._get_user_item_embeddings(loader, "cpu"))
    extra = model.data_preparator.n_item_extra_tokens
    placed = np.zeros((split.catalogue, items.shape[1]), np.float32)
    known = model.data_preparator.item_id_map.convert_to_external(np.arange(extra, len(items)))
    placed[np.array(list(known), np.int64)] = items[extra:].numpy()
    order = shown.user_id_map.convert_to_external(np.arange(len(users)))
    placed_users = np.zeros((len(split.targets), users.shape[1]), np.float32)
    placed_users[np.array(list(order), np.int64)] = users.numpy()
    return placed_users, placed


def main():
    warnings.simplefilter("ignore")
    split = LeaveOneOut.loaded(np.load(sys.argv[1]))
    seed, epochs, length = map(int, sys.argv[2:])
    torch.set_num_threads(1)
    # Places in the file order events of one second.
    stamps = split.times.astype(np.int64) * 1_000_000 + np.arange(len(split.times)) % 1_000_000
    named = {Columns.User: split.users, Columns.Item: split.items, Columns.Weight: 1.0}
    dataset = Dataset.construct(pd.DataFrame(named | {Columns.Datetime: pd.to_datetime(stamps, unit="us")}))
    seed_everything(seed)
    model = SASRecModel(
        n_blocks=LAYERS,
        n_heads=HEADS,
        n_factors=DIM,
        dropout_rate=DROPOUT,
        session_max_len=length,
        loss="softmax",
        lr=RATE,
        batch_size=BATCH,
        get_trainer_func=trainer,
        recommend_torch_device="cpu",
    )
    model.fit_partial(dataset, min_epochs=epochs, max_epochs=epochs)
    print(json.dumps(split.measured(*vectors(model, dataset, split))))


if __name__ == "__main__":
    main()
