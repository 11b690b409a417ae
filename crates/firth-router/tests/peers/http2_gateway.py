"""A gateway on hypercorn, an HTTP/2 server: refuses document d3 twice, then takes everything. Prints its port, then one line per batch.

Arguments: the secret that batches are signed with (whsec_ and base64); then, for mutual TLS, the files of the authority, the certificate and
its key. Signatures are checked as the Standard Webhooks say.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import socket
import ssl
import sys
import threading

from hypercorn.asyncio import serve
from hypercorn.config import Config

secret, *tls = sys.argv[1:]
secret = base64.b64decode(secret.removeprefix("whsec_"))
seen = {}
refusals = 0


def is_genuine(headers, body):
    signed = b".".join([headers[b"webhook-id"], headers[b"webhook-timestamp"], body])
    ours = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest())
    return b"v1," + ours in headers[b"webhook-signature"].split(b" ")


def take(batch):
    global refusals
    results, refused = [], False
    for event in batch["events"]:
        if event["document_id"] == "d3" and (refusals < 2 or refused):
            refused = True
            results.append({"status": "refused", "reason": "not yet"})
        else:
            seen.setdefault((event["partition_id"], event["seq"]), (event["document_id"], event["payload"]["n"]))
            results.append({"status": "accepted"})
    refusals += refused
    return results


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    headers = dict(scope["headers"])
    genuine = is_genuine(headers, body) and scope["path"] == "/internal/v1/streamer/events"
    answer = json.dumps({"results": take(json.loads(body))}).encode() if genuine else b""
    documents = {}
    for document, number in seen.values():
        documents.setdefault(document, []).append(number)
    token = headers.get(b"authorization", b"").decode()
    print(json.dumps({"documents": documents, "token": token, "version": scope["http_version"]}), flush=True)
    await send({"type": "http.response.start", "status": 200 if genuine else 401, "headers": []})
    await send({"type": "http.response.body", "body": answer})


def end_with_parent():
    sys.stdin.read()
    os._exit(0)


listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(64)
config = Config()
config.bind = [f"fd://{listener.fileno()}"]
config.accesslog = config.errorlog = None
config.alpn_protocols = ["h2"]
if tls:
    config.ca_certs, config.certfile, config.keyfile = tls
    config.verify_mode = ssl.CERT_REQUIRED
print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
threading.Thread(target=end_with_parent, daemon=True).start()
asyncio.run(serve(app, config))
