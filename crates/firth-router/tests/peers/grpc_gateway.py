"""A gateway on grpcio, generated from our .proto: refuses document d3 twice, then takes everything. Prints its port, then one line per batch.

Arguments: the folder of the .proto; then, for mutual TLS, the files of the authority, the certificate and its key.
"""

import json
import os
import sys
import tempfile
import threading
from concurrent import futures

import grpc
from grpc_tools import protoc

proto, *tls = sys.argv[1:]
made = tempfile.mkdtemp()
assert protoc.main(["", f"-I{proto}", f"--python_out={made}", f"--grpc_python_out={made}", "streamer.proto"]) == 0
sys.path.insert(0, made)
import streamer_pb2  # noqa: E402
import streamer_pb2_grpc  # noqa: E402


class Gateway(streamer_pb2_grpc.StreamerServiceServicer):
    def __init__(self):
        self.seen = {}
        self.refusals = 0
        self.lock = threading.Lock()

    def DeliverEvents(self, batch, context):
        return self.take(batch, context, unary=True)

    def StreamEvents(self, batches, context):
        for batch in batches:
            yield streamer_pb2.BatchAck(batch=batch.batch, ack=self.take(batch, context, unary=False))

    def take(self, batch, context, unary):
        with self.lock:
            return self.take_alone(batch, context, unary)

    def take_alone(self, batch, context, unary):
        rejections = []
        for index, event in enumerate(batch.events):
            if event.document_id == "d3" and (self.refusals < 2 or rejections):
                rejections.append(streamer_pb2.Rejection(index=index, reason="not yet"))
            else:
                place = (event.partition_id, event.seq)
                self.seen.setdefault(place, (event.document_id, json.loads(event.payload)["n"]))
        self.refusals += bool(rejections)
        documents = {}
        for document, number in self.seen.values():
            documents.setdefault(document, []).append(number)
        token = dict(context.invocation_metadata()).get("authorization", "")
        line = {"documents": documents, "gateway": batch.gateway_id, "token": token, "unary": unary}
        print(json.dumps(line), flush=True)
        accepted = len(batch.events) - len(rejections)
        return streamer_pb2.DeliveryAck(accepted=accepted, rejected=len(rejections), rejections=rejections)


server = grpc.server(futures.ThreadPoolExecutor(4))
streamer_pb2_grpc.add_StreamerServiceServicer_to_server(Gateway(), server)
if tls:
    ca, cert, key = (open(file, "rb").read() for file in tls)
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, cert)], ca, True))
else:
    port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(json.dumps({"port": port}), flush=True)
# Ends with its parent, whose pipe this is.
sys.stdin.read()
os._exit(0)
