"""Networks over histories of free length, exported by TorchScript's and by dynamo's exporter; padding stands in front.

DIEN stands twice: with a GRU over weighed interests (AIGRU), at any length; and with the paper's AUGRU, whose steps an
exporter writes one by one, at a fixed length. BST and SASRec have PyTorch's own attention by dynamo, and attention of
plain products by TorchScript, which fixes the length of nn.MultiheadAttention to that of the example.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import nn

from loadtest.bench.foreign_models.builders import torch_sequences as sequences
from loadtest.bench.foreign_models.builders.rows import DIM, ITEMS, ids, padded
from loadtest.bench.foreign_models.builders.torch_export import LONGEST, save
from loadtest.bench.foreign_models.builders.torch_sequences import STEPS, Shared
from loadtest.bench.foreign_models.built import ROWS, TableUse

FEW = 6
USES = [TableUse("item", "item"), TableUse("item", "history", -1)]


class Din(sequences.Din):
    """DIN whose weights of events are a softmax."""

    def weights(self, scores, padding):
        return torch.softmax(scores.masked_fill(padding, -1e9), 1)


class Attention(nn.Module):
    """How interests go with the target, 0 at padding."""

    def __init__(self):
        super().__init__()
        self.target = nn.Linear(DIM, DIM, bias=False)

    def forward(self, target, interests, padding):
        scores = (interests * self.target(target).unsqueeze(1)).sum(-1)
        return torch.softmax(scores.masked_fill(padding, -1e9), -1).unsqueeze(-1)


class Dien(Shared):
    """DIEN with AIGRU."""

    def __init__(self):
        super().__init__()
        self.interests, self.attention = nn.GRU(DIM, DIM, batch_first=True), Attention()
        self.evolution = nn.GRU(DIM, DIM, batch_first=True)

    def summarise(self, target, events, history):
        interests, _ = self.interests(events)
        weighed = interests * self.attention(target, interests, history == 0)
        return self.evolution(weighed)[1][-1]


class DienOfSteps(Shared):
    """DIEN with AUGRU, step after step."""

    def __init__(self):
        super().__init__()
        self.interests, self.attention = nn.GRU(DIM, DIM, batch_first=True), Attention()
        self.gates, self.candidate = nn.Linear(2 * DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def summarise(self, target, events, history):
        interests, _ = self.interests(events)
        weights = self.attention(target, interests, history == 0)
        state = torch.zeros_like(target)
        for n in range(events.size(1)):
            given = interests[:, n]
            reset, update = torch.sigmoid(self.gates(torch.cat([given, state], 1))).chunk(2, 1)
            new = torch.tanh(self.candidate(torch.cat([given, reset * state], 1)))
            update = update * weights[:, n]
            state = (1 - update) * state + update * new
        return state


class Products(nn.Module):
    """Attention of two heads, as two products."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, query, events, hidden):
        rows, length, _ = events.shape
        q, k, v = (
            layer(x).view(rows, length, 2, DIM // 2).transpose(1, 2)
            for layer, x in ((self.query, query), (self.key, events), (self.value, events))
        )
        scores = q @ k.transpose(2, 3) / (DIM // 2) ** 0.5
        weights = torch.softmax(scores.masked_fill(hidden, -1e9), -1)
        return self.out((weights @ v).transpose(1, 2).reshape(rows, length, DIM))


class Own(nn.Module):
    """PyTorch's attention of two heads; `hidden` has the shape [length, length], or [rows, 1, 1, length]."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, 2, batch_first=True)

    def forward(self, query, events, hidden):
        if hidden.dim() == 2:
            return self.attention(query, events, events, attn_mask=hidden, need_weights=False)[0]
        return self.attention(query, events, events, key_padding_mask=hidden[:, 0, 0], need_weights=False)[0]


class Bst(Shared):
    """BST whose target is the last of the sequence, and is what the MLP reads."""

    def __init__(self, attention):
        super().__init__()
        self.position, self.attention = nn.Embedding(LONGEST + 1, DIM), attention()
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))
        self.feed = nn.Sequential(nn.Linear(DIM, 16), nn.LeakyReLU(), nn.Linear(16, DIM))

    def summarise(self, target, events, history):
        both = torch.cat([events, target.unsqueeze(1)], 1)
        both = both + self.position(torch.arange(both.size(1)))
        padding = history == 0
        hidden = torch.cat([padding, torch.zeros_like(padding[:, :1])], 1)[:, None, None]
        both = self.norms[0](both + self.attention(both, both, hidden))
        return self.norms[1](both + self.feed(both))[:, -1]


class SasRec(nn.Module):
    """SASRec with two blocks, as its PyTorch ports write it; the score is a product with the target."""

    def __init__(self, attention):
        super().__init__()
        self.item, self.position = nn.Embedding(ITEMS, DIM, padding_idx=0), nn.Embedding(LONGEST, DIM)
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))
        self.attentions = nn.ModuleList(attention() for _ in range(2))
        self.feeds = nn.ModuleList(nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM)) for _ in range(2))
        self.last = nn.LayerNorm(DIM)

    def forward(self, item, history):
        length = history.size(1)
        real = (history != 0).unsqueeze(-1)
        x = self.item(history) * DIM**0.5 + self.position(torch.arange(length))
        x = x * real
        later = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        for norm, attention, feed in zip(self.norms, self.attentions, self.feeds):
            query = norm(x)
            x = query + attention(query, x, later)
            x = (x + feed(x)) * real
        return (self.last(x)[:, -1] * self.item(item)).sum(-1, keepdim=True)


def build(make, dynamo, folder, length=STEPS):
    history = np.ascontiguousarray(padded(ROWS, length)[:, ::-1])
    free = ("history",) if length == STEPS else ()
    save(folder, make(), {"item": ids(ROWS), "history": history}, USES, free=free, dynamo=dynamo)


MODELS = {
    "lengths_din_script": partial(build, Din, False),
    "lengths_din_dynamo": partial(build, Din, True),
    "lengths_dien_script": partial(build, Dien, False),
    "lengths_dien_dynamo": partial(build, Dien, True),
    "lengths_augru_script": partial(build, DienOfSteps, False, length=FEW),
    "lengths_augru_dynamo": partial(build, DienOfSteps, True, length=FEW),
    "lengths_bst_script": partial(build, partial(Bst, Products), False),
    "lengths_bst_dynamo": partial(build, partial(Bst, Own), True),
    "lengths_sasrec_script": partial(build, partial(SasRec, Products), False),
    "lengths_sasrec_dynamo": partial(build, partial(SasRec, Own), True),
}
