"""PyTorch's networks over histories of free length; id 0 is padding."""

# mypy: ignore-errors

from __future__ import annotations

import torch
from torch import nn

from loadtest.bench.training.loops.rows import FREE, Column
from loadtest.bench.training.loops.torch_networks import (
    DIM,
    SIZE,
    TorchNetwork,
    adagrad,
    mlp,
    momentum,
    sparse_adam,
    table,
)

LONGEST = 64
TARGET, HISTORY = Column("item", beyond=True), Column("history", FREE)


class Shared(nn.Module):
    """The item and a summary of the history, by one table; subclasses summarise."""

    def __init__(self, sparse=False):
        super().__init__()
        self.items, self.out = table(sparse), mlp(2 * DIM, 16)

    def forward(self, item, history):
        target, events = self.items(item), self.items(history)
        summary = self.summarise(target, events, history)
        return torch.sigmoid(self.out(torch.cat([target, summary], 1)))


class Mean(Shared):
    def summarise(self, target, events, history):
        real = (history != 0).unsqueeze(-1).float()
        return (events * real).sum(1) / real.sum(1).clamp(min=1)


class Din(Shared):
    def __init__(self):
        super().__init__()
        self.unit = nn.Sequential(nn.Linear(4 * DIM, 16), nn.PReLU(), nn.Linear(16, 1))

    def summarise(self, target, events, history):
        wide = target.unsqueeze(1).expand(-1, events.size(1), -1)
        weights = self.unit(torch.cat([wide, events, wide - events, wide * events], -1)).squeeze(-1)
        return torch.bmm(weights.masked_fill(history == 0, 0.0).unsqueeze(1), events).squeeze(1)


class Gru(Shared):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(DIM, DIM, batch_first=True)

    def summarise(self, target, events, history):
        return self.gru(events)[1][-1]


class Lstm(Shared):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(DIM, DIM, num_layers=2, batch_first=True)

    def summarise(self, target, events, history):
        return self.lstm(events)[0][:, -1]


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
        scores = (q @ k.transpose(2, 3) / (DIM // 2) ** 0.5).masked_fill(hidden, -1e9)
        return self.out((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(rows, length, DIM))


class Own(nn.Module):
    """PyTorch's attention of two heads."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, 2, batch_first=True)

    def forward(self, query, events, hidden):
        return self.attention(query, events, events, attn_mask=hidden, need_weights=False)[0]


class SasRec(nn.Module):
    """Two blocks of causal attention with learned positions; the score is a product with the target."""

    def __init__(self, attention):
        super().__init__()
        self.items, self.positions = table(), nn.Embedding(LONGEST, DIM)
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))
        self.attentions = nn.ModuleList(attention() for _ in range(2))
        self.feeds = nn.ModuleList(mlp(DIM, DIM, out=DIM) for _ in range(2))
        self.last = nn.LayerNorm(DIM)

    def forward(self, item, history):
        length = history.size(1)
        real = (history != 0).unsqueeze(-1)
        x = (self.items(history) * DIM**0.5 + self.positions(torch.arange(length))) * real
        later = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        for norm, attention, feed in zip(self.norms, self.attentions, self.feeds):
            query = norm(x)
            x = query + attention(query, x, later)
            x = (x + feed(x)) * real
        return torch.sigmoid((self.last(x)[:, -1] * self.items(item)).sum(-1, keepdim=True))


class Hstu(Shared):
    """HSTU-like blocks: attention by SiLU without a softmax, gated, with one learned bias for each position."""

    def __init__(self):
        super().__init__()
        self.positions, self.bias = nn.Embedding(LONGEST, DIM), nn.Embedding(LONGEST, 1)
        self.mixes = nn.ModuleList(nn.Linear(DIM, 4 * DIM) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(4))
        self.outs = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(2))

    def summarise(self, target, events, history):
        length = history.size(1)
        places = torch.arange(length)
        x = events + self.positions(places)
        real = (history != 0).unsqueeze(-1).float()
        earlier = torch.tril(torch.ones(length, length)) / length
        bias = self.bias(places).squeeze(-1)
        for at, (mix, out) in enumerate(zip(self.mixes, self.outs)):
            gate, value, query, key = nn.functional.silu(mix(self.norms[2 * at](x))).chunk(4, -1)
            weights = nn.functional.silu(query @ key.transpose(1, 2) + bias) * earlier
            x = (x + out(self.norms[2 * at + 1](weights @ (value * real)) * gate)) * real
        return x[:, -1]


class Encoder(Shared):
    """nn.TransformerEncoder with a mask of padding and learned positions."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(DIM, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.positions = nn.Parameter(torch.randn(LONGEST, DIM) * 0.3)

    def summarise(self, target, events, history):
        x = events + self.positions[: history.size(1)]
        return self.encoder(x, src_key_padding_mask=history == 0).mean(1)


class Bst(Shared):
    """BST: the target is the last of the sequence."""

    def __init__(self):
        super().__init__()
        self.positions, self.attention = nn.Embedding(LONGEST + 1, DIM), Products()
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))
        self.feed = mlp(DIM, 16, out=DIM)

    def summarise(self, target, events, history):
        both = torch.cat([events, target.unsqueeze(1)], 1)
        both = both + self.positions(torch.arange(both.size(1)))
        padding = history == 0
        hidden = torch.cat([padding, torch.zeros_like(padding[:, :1])], 1)[:, None, None]
        both = self.norms[0](both + self.attention(both, both, hidden))
        return self.norms[1](both + self.feed(both))[:, -1]


class NextItem(nn.Module):
    """A GRU whose last state scores all items by the very table that its history reads."""

    def __init__(self):
        super().__init__()
        self.items, self.gru = nn.Embedding(SIZE, DIM), nn.GRU(DIM, DIM, batch_first=True)
        self.bias = nn.Parameter(torch.randn(SIZE) * 0.1)

    def forward(self, history):
        state = self.gru(self.items(history))[1][-1]
        return torch.sigmoid(state @ self.items.weight.T + self.bias)


class Tied(nn.Module):
    """The history's mean scores all items by a Linear whose weight is the table's."""

    def __init__(self):
        super().__init__()
        self.items, self.scores = nn.Embedding(SIZE, DIM), nn.Linear(DIM, SIZE)
        self.scores.weight = self.items.weight

    def forward(self, history):
        return torch.sigmoid(self.scores(torch.tanh(self.items(history).mean(1))))


class TwoWays(Shared):
    """A GRU that reads the history in both directions."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(DIM, DIM // 2, batch_first=True, bidirectional=True)

    def summarise(self, target, events, history):
        return self.gru(events)[0].mean(1)


class Normed(Shared):
    """Batch normalisation of steps, and attention with a learned temperature, a scalar."""

    def __init__(self):
        super().__init__()
        self.norm, self.temperature = nn.BatchNorm1d(DIM), nn.Parameter(torch.tensor(0.5))

    def summarise(self, target, events, history):
        x = self.norm(events.transpose(1, 2)).transpose(1, 2)
        weights = torch.softmax((x * target.unsqueeze(1)).sum(-1) * self.temperature, 1)
        return (weights.unsqueeze(-1) * x).sum(1)


PAIR = (TARGET, HISTORY)
SEQUENCES = (
    TorchNetwork("torch-mean", Mean, PAIR, optimizers=momentum, takes_none=True),
    TorchNetwork("torch-mean-sparse", lambda: Mean(sparse=True), PAIR, optimizers=sparse_adam, takes_none=True),
    TorchNetwork("torch-din", Din, PAIR),
    TorchNetwork("torch-din-script", Din, PAIR, optimizers=adagrad, dynamo=False),
    TorchNetwork("torch-gru", Gru, PAIR, dynamo=False),
    TorchNetwork("torch-lstm", Lstm, PAIR, optimizers=momentum, dynamo=False),
    TorchNetwork("torch-sasrec", lambda: SasRec(Own), PAIR),
    TorchNetwork("torch-sasrec-script", lambda: SasRec(Products), PAIR, dynamo=False),
    TorchNetwork("torch-hstu", Hstu, PAIR),
    TorchNetwork("torch-encoder", Encoder, PAIR),
    TorchNetwork("torch-bst", Bst, PAIR, optimizers=adagrad, dynamo=False),
    TorchNetwork("torch-next-item", NextItem, (HISTORY,), dynamo=False),
    TorchNetwork("torch-gru-optimised", Gru, PAIR, dynamo=False, optimised=True),
    TorchNetwork("torch-sasrec-optimised", lambda: SasRec(Own), PAIR, optimised=True),
    TorchNetwork("torch-bst-optimised", Bst, PAIR, dynamo=False, optimised=True),
    TorchNetwork("torch-tied", Tied, (HISTORY,)),
    TorchNetwork("torch-tied-script", Tied, (HISTORY,), optimizers=momentum, dynamo=False),
    TorchNetwork("torch-two-ways", TwoWays, PAIR, dynamo=False),
    TorchNetwork("torch-normed", Normed, PAIR),
    TorchNetwork("torch-normed-script", Normed, PAIR, dynamo=False),
)
