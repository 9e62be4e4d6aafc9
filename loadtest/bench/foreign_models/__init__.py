"""Eighty models of other frameworks, built by those, imported and served: `make -C loadtest models`.

catalogue    models.toml: the models by family, and the environments that they are built in
built        what a builder leaves: the model's file, rows, outputs of the framework, uses of tables
builders     the builders, one module a family; each runs in the environment of its family
row_copy     the row-copy check of a served model
trial        imports and serves one model, and compares it
models_page  the report
"""

__all__ = ["trial"]
