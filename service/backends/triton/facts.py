"""What a Triton says about itself and its models, as plain values."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tritonclient.grpc import model_config_pb2, service_pb2

from service.backends.triton.tensors import TensorSpec

__all__ = ["ModelFacts", "ServerFacts", "read_model", "read_server"]

# Earlier servers can crash on the header (a use after free, fixed in 26.04).
_GRPC_ERROR_SINCE: Final = (2, 68)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """The server's version, for example "2.51.0"."""

    version: str

    @property
    def has_safe_grpc_errors(self) -> bool:
        """Whether the request header `triton_grpc_error` can be sent without risk."""
        numbers = tuple(int(part) for part in re.findall(r"\d+", self.version)[:2])
        return numbers >= _GRPC_ERROR_SINCE


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """One model's configuration: its tensors by name and how many instances run."""

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    instances: int
    fingerprint: str

    @property
    def required(self) -> frozenset[str]:
        """The names of the inputs that every request must carry."""
        return frozenset(name for name, spec in self.inputs.items() if not spec.is_optional)


async def read_server(stub: Any, timeout_s: float) -> ServerFacts:
    """Ask the server for its version; raises grpc.aio.AioRpcError."""
    answer = await stub.ServerMetadata(service_pb2.ServerMetadataRequest(), timeout=timeout_s)
    return ServerFacts(version=answer.version)


async def read_model(stub: Any, name: str, timeout_s: float) -> ModelFacts:
    """Ask for a model's configuration, which unlike its metadata marks optional inputs; raises AioRpcError."""
    answer = await stub.ModelConfig(service_pb2.ModelConfigRequest(name=name), timeout=timeout_s)
    config = answer.config
    is_batched = config.max_batch_size > 0
    return ModelFacts(
        name=name,
        inputs={tensor.name: _spec(tensor, is_batched=is_batched) for tensor in config.input},
        outputs={tensor.name: _spec(tensor, is_batched=is_batched) for tensor in config.output},
        instances=max(1, sum(group.count for group in config.instance_group)),
        fingerprint=hashlib.sha256(config.SerializeToString(deterministic=True)).hexdigest()[:16],
    )


def _spec(tensor: Any, *, is_batched: bool) -> TensorSpec:
    datatype = model_config_pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_")
    return TensorSpec(
        name=tensor.name,
        datatype="BYTES" if datatype == "STRING" else datatype,
        dims=tuple(tensor.dims),
        # Outputs have no such field.
        is_optional=bool(getattr(tensor, "optional", False)),
        is_batched=is_batched,
    )
