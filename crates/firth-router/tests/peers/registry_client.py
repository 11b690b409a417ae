"""A client of the registry on grpcio, generated from our .proto: registers, heartbeats, is refused, and leaves. Prints what it was told, as one line.

Arguments: the folder of the .proto, the address, the token.
"""

import json
import sys
import tempfile

import grpc
from grpc_tools import protoc

proto, address, token = sys.argv[1:]
made = tempfile.mkdtemp()
assert protoc.main(["", f"-I{proto}", f"--python_out={made}", f"--grpc_python_out={made}", "registry.proto"]) == 0
sys.path.insert(0, made)
import registry_pb2 as messages  # noqa: E402
import registry_pb2_grpc as services  # noqa: E402

registry = services.RegistryServiceStub(grpc.insecure_channel(address))
ours = [("authorization", f"Bearer {token}")]


def call(name, message, metadata=ours):
    """The answer as a dictionary, or the status and its text."""
    try:
        answer = getattr(registry, name)(message, metadata=metadata, timeout=60, wait_for_ready=True)
        return {field.name: value for field, value in answer.ListFields()}
    except grpc.RpcError as error:
        return {"code": error.code().name, "text": error.details()}


def subscription(name, **more):
    return messages.Subscription(id=name, tenant="t", collection="orders", **more)


condition = messages.Condition(field="n", op=">", value_json="1")
told = {
    "stranger": call("Register", subscription("x", gateway="g"), [("authorization", "Bearer guess")]),
    "gateway": call("RegisterGateway", messages.Gateway(id="g", endpoint="http://h:1", protocol="grpc", ttl_seconds=60)),
    "filter": call("Register", subscription("f", filter="doc.n > 1", gateway="g", priority="high")),
    "conditions": call("Register", subscription("c", conditions=[condition], mode="hash", ttl_seconds=60)),
    "too_many": call("Register", subscription("third", gateway="g")),
    "wrong": call("Register", subscription("f", filter="doc.(", gateway="g")),
    "gateway_lives": call("HeartbeatGateway", messages.GatewayName(id="g")),
    "lives": call("Heartbeat", messages.SubscriptionName(tenant="t", id="c")),
    "unknown": call("Heartbeat", messages.SubscriptionName(tenant="t", id="none")),
    "left": call("Unregister", messages.SubscriptionName(tenant="t", id="c")),
}
print(json.dumps(told), flush=True)
