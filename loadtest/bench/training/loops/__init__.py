"""Training loops that publish, and what is served after each delta: `make -C loadtest loops`.

__main__         all networks, with progress; loadtest/results/training-loops.md
followed         one network: imported, served in process, compared after each delta
loops_page       the report
rows             columns of a network's inputs, and rows of them
side             a framework's process: commands in, answers out
torch_side       PyTorch: trains, publishes by the hook, scores
torch_networks   its networks over ids and bags
torch_sequences  its networks over histories of free length
keras_side       Keras: trains, publishes by the callback, scores
keras_networks   its networks
"""

__all__ = ["followed", "loops_page", "rows", "side"]
