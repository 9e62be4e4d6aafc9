"""Run the scoring process of a supervisor: `python -m freshet_serving.processor.extensions.explaining FD`."""

import sys

if __name__ == "__main__":
    from freshet_serving.processor.extensions.explaining.scoring_process import main

    sys.exit(main(int(sys.argv[1])))
