"""Tickets of the batcher's tests, and what they are put for."""

from dataclasses import dataclass

from freshet_serving.processor.running.cost import CostTable
from freshet_serving.processor.sessions.batcher import Ticket


class Target:
    """cost: of any batch, by bucket."""

    def __init__(self, name="", cost=None):
        self.name, self.model, self.costs = name, name, CostTable(cost or {1: 1e-9, 64: 2e-9})

    def __repr__(self):
        return self.name


TARGETS = [Target("a"), Target("b", {1: 0.5, 8: 1.0}), Target("c", {4: 2.0})]


@dataclass(slots=True, eq=False, kw_only=True)
class Owned(Ticket):
    """A ticket that knows what it was put for. first: the request's row that it begins with."""

    target: Target
    number: int = 0
    first: int = 0

    def take_chunk(self, rows):
        head = Ticket.take_chunk(self, rows)
        self.first += head.rows
        return head


def put(batcher, *rows, target=TARGETS[0], deadline_s=None, now_s=0.0):
    tickets = [Owned(n, 0, deadline_s, target=target) for n in rows]
    for ticket in tickets:
        batcher.put(ticket, target, now_s)
    return tickets
