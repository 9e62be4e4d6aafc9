"""Networks over a history of items, as people write them in PyTorch; the item's table is the history's too."""

from __future__ import annotations

import torch
from torch import nn

from loadtest.bench.foreign_models.builders.torch_export import DIM, ITEMS, STEPS, ids, padded, save
from loadtest.bench.foreign_models.built import ROWS, TableUse

BOTH = [TableUse("item", "item"), TableUse("item", "history", 0)]
# A recurrent network has forgotten the first of twenty steps.
RECENT = [TableUse("item", "item"), TableUse("item", "history", STEPS - 1)]


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


def build(folder, model, free=False, uses=BOTH):
    inputs = {"item": ids(ROWS), "history": padded(ROWS, STEPS)}
    save(folder, model, inputs, uses, free=("history",) if free else ())


def torch_masked_mean(folder):
    class MaskedMean(Shared):
        def summarise(self, target, steps, history):
            mask = (history != 0).unsqueeze(-1).float()
            return (steps * mask).sum(1) / mask.sum(1).clamp(min=1)

    build(folder, MaskedMean())


def torch_free_mean(folder):
    class FreeMean(Shared):
        def summarise(self, target, steps, history):
            return steps.mean(1)

    build(folder, FreeMean(), free=True)


def torch_din(folder):
    class Din(Shared):
        def __init__(self):
            super().__init__()
            self.unit = nn.Sequential(nn.Linear(4 * DIM, 16), nn.PReLU(), nn.Linear(16, 1))

        def summarise(self, target, steps, history):
            wide = target.unsqueeze(1).expand_as(steps)
            scores = self.unit(torch.cat([wide, steps, wide - steps, wide * steps], -1))
            scores = scores.masked_fill((history == 0).unsqueeze(-1), 0.0)
            return (scores * steps).sum(1)

    build(folder, Din(), free=True)


def torch_gru(folder):
    class Gru(Shared):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(DIM, DIM, batch_first=True)

        def summarise(self, target, steps, history):
            return self.gru(steps)[1][-1]

    build(folder, Gru(), uses=RECENT)


def torch_lstm(folder):
    class Lstm(Shared):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(DIM, DIM, num_layers=2, batch_first=True)

        def summarise(self, target, steps, history):
            return self.lstm(steps)[0][:, -1]

    build(folder, Lstm(), uses=RECENT)


def torch_encoder(folder):
    class Encoder(Shared):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def summarise(self, target, steps, history):
            return self.encoder(steps, src_key_padding_mask=history == 0)[:, 0]

    build(folder, Encoder())


def torch_sasrec(folder):
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

    build(folder, SasRec())
