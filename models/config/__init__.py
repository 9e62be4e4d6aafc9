"""The training file: a module a section, each read into its dataclass and checked in one place.

train_config      the whole file, and what overrides it
model_section     [model]
arch_options      what of [model] the architecture's builder takes
data_section      [data]
feature_sections  [features.*]
train_section     [train]
table_sections    [tables.*]
publish_section   [publish]
evaluate_section  [evaluate]
guard_section     [guard]
toml_sections     a section read into its dataclass; checks that all of them share
"""

__all__ = [
    "arch_options",
    "evaluate_section",
    "feature_sections",
    "guard_section",
    "model_section",
    "publish_section",
    "table_sections",
    "train_config",
    "train_section",
]
