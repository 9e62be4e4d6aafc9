"""`python -m processor.explaining FD`: a process that scores for explanations. Only supervisors start it."""

import sys

if __name__ == "__main__":
    from processor.explaining.scoring_process import main

    sys.exit(main(int(sys.argv[1])))
