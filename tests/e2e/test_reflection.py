"""A client without our stubs: it learns the contract from the server, as grpcurl does."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from headrace.v1 import generation_pb2
from tests.support.processes import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]


class Reflected:
    """A server as it describes itself: messages are plain dictionaries."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._database = ProtoReflectionDescriptorDatabase(channel)
        # A pool of its own: nothing in it comes from our generated modules.
        self._pool = DescriptorPool(self._database)

    def services(self) -> set[str]:
        return set(self._database.get_services())

    def call(self, service: str, method: str, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Call a method and return all messages that come back."""
        described = self._pool.FindServiceByName(service).FindMethodByName(method)
        answer_type = GetMessageClass(described.output_type)
        assert answer_type is not generation_pb2.GenerateResponse
        kind = self._channel.unary_stream if described.server_streaming else self._channel.unary_unary
        call = kind(
            f"/{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer_type.FromString,
        )
        message = ParseDict(request, GetMessageClass(described.input_type)())
        answers = call(message, timeout=20)
        return [
            MessageToDict(answer, preserving_proto_field_name=True)
            for answer in (answers if described.server_streaming else [answers])
        ]


def test_the_contract_can_be_learned_from_the_server_and_used(simulated: Stack) -> None:
    with grpc.insecure_channel(simulated.target) as channel:
        server = Reflected(channel)
        assert server.services() == {
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
            "headrace.v1.GenerationService",
            "headrace.v1.ModelService",
            "headrace.v1.TokenizeService",
        }
        (listed,) = server.call("headrace.v1.ModelService", "ListModels", {})
        model = listed["models"][0]["id"]
        request = {"model": model, "prompt": 'simulate: {"tokens": ["Hi", " there"], "output_tokens": 2}'}
        events = server.call("headrace.v1.GenerationService", "Generate", request)
        assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
        assert "".join(event["delta"]["text"] for event in events if "delta" in event) == "Hi there"
        assert events[0]["started"]["model"] == model
        assert events[-1]["completed"]["usage"]["output_token_count"] == 2
        health = server.call("grpc.health.v1.Health", "Check", {"service": f"model/{model}"})
        assert health == [{"status": "SERVING"}]


def test_an_error_can_be_read_without_our_stubs(simulated: Stack) -> None:
    with grpc.insecure_channel(simulated.target) as channel:
        with pytest.raises(grpc.RpcError) as failed:
            Reflected(channel).call("headrace.v1.GenerationService", "Generate", {"model": "none", "prompt": "x"})
        assert failed.value.code() is grpc.StatusCode.NOT_FOUND
