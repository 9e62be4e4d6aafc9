"""Run the `freshet` command: python -m freshet_serving."""

from freshet_serving.serving.commands.cli import main

if __name__ == "__main__":
    main()
