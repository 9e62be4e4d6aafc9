"""send_clicks.py REDIS STREAM: clicks that have something to learn, one entry each, until it is ended."""

import argparse
import random
import time

import redis

CATEGORIES = ("shoes", "books", "games", "garden", "music")

arguments = argparse.ArgumentParser()
arguments.add_argument("redis")
arguments.add_argument("stream")
arguments.add_argument("--rows-a-second", type=float, default=500)
options = arguments.parse_args()
chance = random.Random(7)
store = redis.Redis.from_url(options.redis)
begun_s, sent = time.monotonic(), 0
while True:
    due = int((time.monotonic() - begun_s) * options.rows_a_second) + 4000  # enough for a first version at once
    try:
        pipe = store.pipeline(transaction=False)
        for _ in range(min(due - sent, 2000)):
            user, item = int(chance.paretovariate(1.1)) % 5000, int(chance.paretovariate(1.1)) % 2000
            liked = 0.1 + 0.5 * ((user * 2654435761 ^ item * 40503) % 97 < 20)
            row = {"user_id": user, "item_id": item, "category": CATEGORIES[item % 5], "price": f"{1 + item % 90}.5"}
            row |= {"clicked": int(chance.random() < liked), "ts": f"{time.time():.3f}"}
            pipe.xadd(options.stream, row, maxlen=1_000_000, approximate=True)
            sent += 1
        pipe.execute()
    except redis.ConnectionError:
        pass
    time.sleep(0.1)
