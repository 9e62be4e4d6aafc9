"""`python -m freshet_serving.serving.workers FD`: the fork server of workers, FD its end of the channel.

Started by supervisors only.
"""

import signal
import sys

if __name__ == "__main__":
    # The supervisor decides when a worker ends; a signal to the whole group or the whole service reaches it too.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    from freshet_serving.serving.workers.fork_server import main

    sys.exit(main(int(sys.argv[1])))
