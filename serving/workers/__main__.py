"""Run the fork server of workers: `python -m freshet_serving.serving.workers FD`, FD its end of the channel.

Only supervisors start it.
"""

import signal
import sys

if __name__ == "__main__":
    # The supervisor decides when a worker ends: a signal to the process group or the service reaches the supervisor
    # too.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    from freshet_serving.serving.workers.fork_server import main

    sys.exit(main(int(sys.argv[1])))
