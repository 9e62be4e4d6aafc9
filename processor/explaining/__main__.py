"""`python -m freshet_serving.processor.explaining FD`: scores for explanations. Started by supervisors only."""

import sys

if __name__ == "__main__":
    from freshet_serving.processor.explaining.scoring_process import main

    sys.exit(main(int(sys.argv[1])))
