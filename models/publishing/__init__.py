"""Publishing from any trainer: what it changed becomes deltas of a version that is served already. numpy alone.

publisher       the library: checks, keys, the chain, rollbacks, the difference to what is served
keras_callback  a Keras callback that publishes what `fit` changes
keras_mapping   which variable of a Keras model is which table or dense weight of a package, and which row is which key
torch_hook      the same for a PyTorch loop
model_tracker   what callback and hook share: rows that moved since they were published, and when to publish
difference      what has to be published so that a table is served as a trainer holds it
rollback_patch  what a rollback took back, as rows to put back
key_ids         keys as ids: strings hashed as serving does
"""

__all__ = ["publisher"]
