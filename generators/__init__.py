"""Generators of repository files: pages of docs/reference from the code, and message modules from `.proto` files.

admin_page         docs/reference/admin.md
build_backend      the wheel, with compiled kernels (PEP 517)
commands_page      docs/reference/commands.md
generate_messages  modules of messages: `make -C loadtest protos`
options_page       docs/reference/options.md
python_page        docs/reference/python.md
sample             the model of `freshet serve --sample`
training_page      docs/reference/training-file.md

No wheel contains them.
"""

__all__: list[str] = []
