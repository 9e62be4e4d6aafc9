"""Measurements: servers under load, and benchmarks; results/ holds the figures that the docs quote.

live     `make loadtest`: a server under load and deltas, every score checked
bench    `make bench`: what may import the engine, and measures it
peers    `make -C loadtest peers`: the same work behind other servers
load     load generators and what became of their requests; over the network only
reports  pages and pictures of figures
"""

__all__: list[str] = []
