"""Online features: what a request's keys lead to in a feature store's Redis (Feast's layout, or plain hashes).

feature_lookup   fills the inputs that a request leaves out
reader           reads the features of a request's rows: deadline, defaults, counters
group_sections   makes groups of features (processor.package.feature_groups) of a training configuration
store_settings   where a store is and how to log in to it: the server's part
opening          opens the stores that a server is configured with
online_store     the interface of a store: fields of hashes by key, within a deadline
damaged_values   counts the values that cannot be read, and says which in the log
redis_store      a store in Redis: a server, a cluster, a master named by sentinels
entity_cache     cache of what was read, and one read for all that ask at the same time
feast_keys       keys and fields under which Feast stores features
feast_values     decodes Feast's serialized values
feast_registry   feature views and services of Feast's registry.db
plain_values     values of plain hashes
protobuf_fields  the fields of a protobuf message, without its definition
"""

__all__ = ["feature_lookup", "group_sections", "online_store", "opening", "reader", "store_settings"]
