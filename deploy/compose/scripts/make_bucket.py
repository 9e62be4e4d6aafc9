"""make_bucket.py URL: waits for an S3 server that asks for no signature (moto), and makes the bucket."""

import sys
import time
import urllib.error
import urllib.request

until_s = time.monotonic() + 60
while True:
    try:
        urllib.request.urlopen(urllib.request.Request(sys.argv[1], method="PUT"), timeout=5)
        break
    except urllib.error.HTTPError as error:
        if error.code == 409:  # it is there
            break
        raise
    except OSError:
        if time.monotonic() > until_s:
            sys.exit("make_bucket: the S3 server does not answer")
        time.sleep(0.2)
