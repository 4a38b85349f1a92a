"""Asks a daemon by redis-py's default pipeline (MULTI and EXEC), and prints every reply as a line of JSON."""

import json
import sys

import redis

port, password = int(sys.argv[1]), sys.argv[2]


def show(reply):
    print(json.dumps(reply, default=lambda raw: raw.decode()))


for protocol in (2, 3):
    client = redis.Redis(port=port, password=password, protocol=protocol)
    key = f"pipeline:{protocol}"
    with client.pipeline() as pipeline:
        for _ in range(3):
            pipeline.execute_command("CL.THROTTLE", key, 1, 1, 3600, 1)
        pipeline.ping()
        for reply in pipeline.execute():
            show(reply)
    # What was charged: peeking takes nothing.
    show(client.execute_command("CL.THROTTLE", key, 1, 1, 3600, 0)[2])
    # A command that a transaction cannot hold discards all of it.
    with client.pipeline() as pipeline:
        pipeline.execute_command("CL.THROTTLE", f"{key}:discarded", 1, 1, 3600, 1)
        pipeline.execute_command("GET", key)
        try:
            pipeline.execute()
        except redis.ResponseError:
            show("discarded")
    show(client.execute_command("CL.THROTTLE", f"{key}:discarded", 1, 1, 3600, 0)[2])
    client.close()
