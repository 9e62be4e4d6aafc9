"""Networks over a history of items, as people write them in PyTorch; the item's table is the history's too."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from loadtest.bench.foreign_models.builders.rows import DIM, ITEMS, ids, padded
from loadtest.bench.foreign_models.builders.torch_export import save
from loadtest.bench.foreign_models.built import ROWS, TableUse

STEPS = 20


class Shared(nn.Module):
    """The item and a summary of the history, by one table; subclasses summarise."""

    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(ITEMS, DIM, padding_idx=0)
        self.out = nn.Sequential(nn.Linear(2 * DIM, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, item, history):
        target, steps = self.item(item), self.item(history)
        summary = self.summarise(target, steps, history)
        return torch.sigmoid(self.out(torch.cat([target, summary], 1)))


class MaskedMean(Shared):
    def summarise(self, target, steps, history):
        mask = (history != 0).unsqueeze(-1).float()
        return (steps * mask).sum(1) / mask.sum(1).clamp(min=1)


class FreeMean(Shared):
    def summarise(self, target, steps, history):
        return steps.mean(1)


class Din(Shared):
    def __init__(self):
        super().__init__()
        self.unit = nn.Sequential(nn.Linear(4 * DIM, 16), nn.PReLU(), nn.Linear(16, 1))

    def summarise(self, target, steps, history):
        wide = target.unsqueeze(1).expand_as(steps)
        scores = self.unit(torch.cat([wide, steps, wide - steps, wide * steps], -1))
        return (self.weights(scores, (history == 0).unsqueeze(-1)) * steps).sum(1)

    def weights(self, scores, padding):
        return scores.masked_fill(padding, 0.0)


class Gru(Shared):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(DIM, DIM, batch_first=True)

    def summarise(self, target, steps, history):
        return self.gru(steps)[1][-1]


class Lstm(Shared):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(DIM, DIM, num_layers=2, batch_first=True)

    def summarise(self, target, steps, history):
        return self.lstm(steps)[0][:, -1]


class Encoder(Shared):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def summarise(self, target, steps, history):
        return self.encoder(steps, src_key_padding_mask=history == 0)[:, 0]


class SasRec(Shared):
    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.randn(STEPS, DIM) * 0.3)
        self.norm, self.attention = nn.LayerNorm(DIM), nn.MultiheadAttention(DIM, 2, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM))
        self.register_buffer("causal", torch.triu(torch.ones(STEPS, STEPS, dtype=torch.bool), 1))

    def summarise(self, target, steps, history):
        x = steps * DIM**0.5 + self.position
        q = self.norm(x)
        x = q + self.attention(q, x, x, attn_mask=self.causal, need_weights=False)[0]
        return (x + self.feed(x)).mean(1)


def build(make, folder, free=False, place=0):
    """Export a network. place: an event of the history that it has not forgotten."""
    inputs = {"item": ids(ROWS), "history": padded(ROWS, STEPS)}
    uses = [TableUse("item", "item"), TableUse("item", "history", place)]
    save(folder, make(), inputs, uses, free=("history",) if free else ())


MODELS = {
    "torch_masked_mean": partial(build, MaskedMean),
    "torch_free_mean": partial(build, FreeMean, free=True),
    "torch_din": partial(build, Din, free=True),
    # A recurrent network has forgotten the first of twenty steps.
    "torch_gru": partial(build, Gru, place=STEPS - 1),
    "torch_lstm": partial(build, Lstm, place=STEPS - 1),
    "torch_encoder": partial(build, Encoder),
    "torch_sasrec": partial(build, SasRec),
}
