"""A gateway on grpcio, generated from our .proto: refuses document d3 twice, then takes everything. Prints its port, then one line per batch."""

import json
import os
import sys
import tempfile
from concurrent import futures

import grpc
from grpc_tools import protoc

proto = sys.argv[1]
made = tempfile.mkdtemp()
assert protoc.main(["", f"-I{proto}", f"--python_out={made}", f"--grpc_python_out={made}", "streamer.proto"]) == 0
sys.path.insert(0, made)
import streamer_pb2  # noqa: E402
import streamer_pb2_grpc  # noqa: E402


class Gateway(streamer_pb2_grpc.StreamerServiceServicer):
    def __init__(self):
        self.seen = {}
        self.refusals = 0

    def DeliverEvents(self, batch, context):
        rejections = []
        for index, event in enumerate(batch.events):
            if event.document_id == "d3" and (self.refusals < 2 or rejections):
                rejections.append(streamer_pb2.Rejection(index=index, reason="not yet"))
            else:
                self.seen.setdefault((event.partition_id, event.seq), json.loads(event.payload)["n"])
        self.refusals += bool(rejections)
        token = dict(context.invocation_metadata()).get("authorization", "")
        print(json.dumps({"seen": sorted(self.seen.values()), "gateway": batch.gateway_id, "token": token}), flush=True)
        accepted = len(batch.events) - len(rejections)
        return streamer_pb2.DeliveryAck(accepted=accepted, rejected=len(rejections), rejections=rejections)


server = grpc.server(futures.ThreadPoolExecutor(4))
streamer_pb2_grpc.add_StreamerServiceServicer_to_server(Gateway(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(json.dumps({"port": port}), flush=True)
# Ends with its parent, whose pipe this is.
sys.stdin.read()
os._exit(0)
