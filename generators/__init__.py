"""What makes files of the repository of its code: pages of docs/reference, and messages of `.proto` files.

admin_page         docs/reference/admin.md
commands_page      docs/reference/commands.md
generate_messages  modules of messages: `make -C loadtest protos`
options_page       docs/reference/options.md
python_page        docs/reference/python.md
training_page      docs/reference/training-file.md

No distribution holds any of it.
"""

__all__: list[str] = []
