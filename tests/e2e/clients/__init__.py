"""Real clients of the protocols, each a program of its own: `python -m tests.e2e.clients.NAME FILE`.

FILE is JSON: addresses `http` and `grpc`, the probe's inputs (`user`, `tags`, `floats`) of model `small`, the `scores`
that it has to get, and the `generation` that gives them. A client asserts, and prints how many calls it has made.
"""
