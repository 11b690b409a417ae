"""A gateway on nats-py: refuses document d3 twice, then takes everything. Prints a line when it listens, then one per batch.

Arguments: the server's URL, the subject, and `reply` (answers requests) or `jetstream` (takes what a stream has stored).
"""

import asyncio
import json
import os
import sys
import threading

import nats
from nats.errors import TimeoutError as NoneYet

url, subject, mode = sys.argv[1:4]
seen = {}
refusals = 0


def take(body):
    """The answers to a batch."""
    global refusals
    results, refused = [], False
    for event in json.loads(body)["events"]:
        if event["document_id"] == "d3" and (refusals < 2 or refused):
            refused = True
            results.append({"status": "refused", "reason": "not yet"})
        else:
            seen.setdefault((event["partition_id"], event["seq"]), (event["document_id"], event["payload"]["n"]))
            results.append({"status": "accepted"})
    refusals += refused
    documents = {}
    for document, number in seen.values():
        documents.setdefault(document, []).append(number)
    print(json.dumps({"documents": documents}), flush=True)
    return results, refused


async def main():
    connection = await nats.connect(url)
    if mode == "reply":

        async def answer(message):
            results, _ = take(message.data)
            await message.respond(json.dumps({"results": results}).encode())

        await connection.subscribe(subject, cb=answer)
        await connection.flush()
        print(json.dumps({"listens": True}), flush=True)
        await asyncio.Event().wait()
    stream = connection.jetstream()
    await stream.add_stream(name="EVENTS", subjects=["syntrix.streamer.events.>"])
    config = nats.js.api.ConsumerConfig(durable_name="gateway", max_ack_pending=1)
    consumer = await stream.pull_subscribe(subject, "gateway", stream="EVENTS", config=config)
    print(json.dumps({"listens": True}), flush=True)
    while True:
        try:
            [message] = await consumer.fetch(1, timeout=5)
        except NoneYet:
            continue
        _, refused = take(message.data)
        await (message.nak() if refused else message.ack())


def end_with_parent():
    sys.stdin.read()
    os._exit(0)


threading.Thread(target=end_with_parent, daemon=True).start()
asyncio.run(main())
