"""The `freshet` command, or python -m freshet_serving."""

from __future__ import annotations

import sys

from freshet_serving.strangers import FLOORS, taken


def main() -> None:
    """Runs the command; an import that fails for want of a name that a stranger has is one line and exit code 2.

    Asked only once it has failed: to serve, nobody needs the name `models`.
    """
    try:
        from serving.commands.cli import main as command

        command()
    except ImportError as error:
        stranger = taken(*FLOORS)
        if stranger is None:
            raise
        print(f"freshet: {error}; {stranger}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
