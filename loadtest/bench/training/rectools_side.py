"""RecTools' SASRec in the next-item race; run in an environment with rectools and torch.

Arguments: the side, `rectools` or `rectools-gpu`, a file of LeaveOneOut arrays, a folder, seed, epochs, threads, and
perhaps the most events of a history and the epochs between two measurements. Writes <folder>/<side>-<seed>.json
after each, figures by measurement, and the model beside it, and continues from there.
Everything is rectools 0.19's own but loss, widths, length and rate, which are the race's.
"""

# mypy: ignore-errors

import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from leave_one_out import LeaveOneOut
from pytorch_lightning import Trainer, seed_everything
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import SASRecModel

DIM, LENGTH, LAYERS, HEADS, DROPOUT, BATCH, RATE = 50, 200, 2, 1, 0.2, 128, 0.001


def trainer(accelerator="cpu"):
    return Trainer(
        max_epochs=10_000,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        enable_checkpointing=False,
        accelerator=accelerator,
        devices=1,
    )


def trainer_on_gpu():
    # A saved model names the function, so it cannot be a partial.
    return trainer("gpu")


def vectors(model, dataset, split, device):
    """Return the users' and items' vectors in the order of the split."""
    shown = model.data_preparator.transform_dataset_u2i(dataset, np.arange(len(split.targets)))
    loader = model.data_preparator.get_dataloader_recommend(shown, 256)
    users, items = model.lightning_model._get_user_item_embeddings(loader, device)
    users, items = users.cpu(), items.cpu()
    placed = np.zeros((split.catalogue, items.shape[1]), np.float32)
    known = model.data_preparator.item_id_map.convert_to_external(
        np.arange(model.data_preparator.n_item_extra_tokens, len(items))
    )
    placed[np.array(list(known), np.int64)] = items[model.data_preparator.n_item_extra_tokens :].numpy()
    order = shown.user_id_map.convert_to_external(np.arange(len(users)))
    placed_users = np.zeros((len(split.targets), users.shape[1]), np.float32)
    placed_users[np.array(list(order), np.int64)] = users.numpy()
    return placed_users, placed


def main():
    warnings.simplefilter("ignore")
    side, split = sys.argv[1], LeaveOneOut.loaded(np.load(sys.argv[2]))
    folder, (seed, epochs, threads, *more) = Path(sys.argv[3]), (int(word) for word in sys.argv[4:])
    length, each = more or (LENGTH, 1)
    torch.set_num_threads(threads)
    device = "cuda" if side.endswith("gpu") else "cpu"
    told, kept = folder / f"{side}-{seed}.json", folder / f"{side}-{seed}.model"
    done = json.loads(told.read_text()) if told.exists() and kept.exists() else []
    # Places in the file order events of one second.
    times = pd.to_datetime(
        split.times.astype(np.int64) * 1_000_000 + np.arange(len(split.times)) % 1_000_000, unit="us"
    )
    events = pd.DataFrame(
        {Columns.User: split.users, Columns.Item: split.items, Columns.Weight: 1.0, Columns.Datetime: times}
    )
    dataset = Dataset.construct(events)
    seed_everything(seed + 1000 * len(done))
    model = (
        SASRecModel.load(kept)
        if done
        else SASRecModel(
            n_blocks=LAYERS,
            n_heads=HEADS,
            n_factors=DIM,
            dropout_rate=DROPOUT,
            session_max_len=length,
            loss="softmax",
            lr=RATE,
            batch_size=BATCH,
            get_trainer_func=trainer_on_gpu if device == "cuda" else trainer,
            recommend_torch_device=device,
        )
    )
    while len(done) * each < epochs:
        began, cpu = time.perf_counter(), time.process_time()
        model.fit_partial(dataset, min_epochs=each, max_epochs=each)
        spent, cpu = time.perf_counter() - began, time.process_time() - cpu
        figures = split.measured(*vectors(model, dataset, split, device))
        done.append(figures | {"seconds": round(spent, 1), "cpu_seconds": round(cpu, 1)})
        model.save(kept)
        told.write_text(json.dumps(done, indent=1) + "\n")
        print(json.dumps(done[-1]), flush=True)


if __name__ == "__main__":
    main()
