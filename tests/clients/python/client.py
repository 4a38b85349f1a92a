"""Asks a daemon with an unmodified redis-py, and prints every reply as a line of JSON."""

import json
import sys

import redis

port, password = int(sys.argv[1]), sys.argv[2]


def show(reply):
    print(json.dumps(reply, default=lambda raw: raw.decode()))


for protocol in (2, 3):
    client = redis.Redis(port=port, password=password, protocol=protocol)
    show(client.ping())
    key = f"python:{protocol}"
    for _ in range(3):
        show(client.execute_command("CL.THROTTLE", key, 1, 30, 60, 1))
    pipeline = client.pipeline(transaction=False)
    for _ in range(3):
        pipeline.execute_command("TG.CHECK", "site", "api_key", key)
    for reply in pipeline.execute():
        show(reply)
    client.close()

try:
    redis.Redis(port=port, password="wrong").ping()
except redis.AuthenticationError:
    show("refused")
