"""Generators of repository files: tables of docs/reference from the code, and message modules from `.proto` files.

admin_page         tables of docs/reference/admin.md
build_backend      the wheel, with compiled kernels (PEP 517)
commands_page      tables of docs/reference/commands.md
generate_messages  modules of messages: `make -C loadtest protos`
options_page       tables of docs/reference/options.md
python_page        tables of docs/reference/python.md
reference          all of these, into build/reference
sample             the model of `freshet serve --sample`
training_page      tables of docs/reference/training-file.md

No wheel contains them.
"""

__all__: list[str] = []
