"""The training file: one module per section, each read into its dataclass and validated in one place.

train_config      the whole file, and command-line overrides
model_section     [model]
arch_options      the options of [model] that the architecture's builder accepts
data_section      [data]
feature_sections  [features.*]
file_keys         all sections and keys, for help and reference
sequence_sections  [sequences.*]
sequence_defaults  what a file with [sequences] and no arch gets
history_features  features that are made of the events of a history
memorised_features  features of linear weights and of counts
train_section     [train]
network_rules     rules of a network of the zoo: what features, histories and labels it reads
next_item_rules   rules of a file whose network learns which item comes next
retrieval_rules   rules of a file whose two towers learn to retrieve
table_sections    [tables.*]
entity_sections   [entities.*]
user_table_sections  [user_table.*]
online_sections   [online_features.*]
publish_section   [publish]
evaluate_section  [evaluate]
gate_section      [publish.gate]
guard_section     [guard]
toml_sections     parses a section into its dataclass; checks that all sections share
"""

__all__ = [
    "arch_options",
    "entity_sections",
    "evaluate_section",
    "feature_sections",
    "file_keys",
    "gate_section",
    "guard_section",
    "history_features",
    "model_section",
    "next_item_rules",
    "publish_section",
    "retrieval_rules",
    "table_sections",
    "train_config",
    "train_section",
]
