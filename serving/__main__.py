"""python -m serving: the `freshet` command."""

from serving.commands.cli import main

if __name__ == "__main__":
    main()
