"""Publish changes of any trainer as deltas of a served version; needs only numpy.

publisher       the library: checks, keys, the change log, rollbacks, the difference to the served state
keras_callback  a Keras callback that publishes what `fit` changes
keras_mapping   mapping of a Keras model's variables and rows to a package's tables, dense weights and keys
torch_hook      the same for a PyTorch loop
model_tracker   shared by callback and hook: tracking of unpublished changes, and the publish interval
entity_rows     rows of entities from columns, as serving would have bound them
rollback_patch  rows and weights to restore in a trainer after a rollback
key_ids         keys as ids: strings hashed as serving does
"""

__all__ = ["key_ids", "publisher"]
