"""Run the fork server of workers: `python -m freshet_serving.serving.workers FD`, FD its end of the channel.

Only supervisors start it.
"""

import sys

from freshet_serving.serving.workers.fork_server import ignore_signals, main

if __name__ == "__main__":
    ignore_signals()
    sys.exit(main(int(sys.argv[1])))
