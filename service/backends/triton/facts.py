"""What a Triton says about itself and its models, as plain values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonclient.grpc import model_config_pb2, service_pb2

from service.backends.triton.tensors import TensorSpec
from service.backends.triton.versions import Abilities, abilities_of

__all__ = ["ModelFacts", "ServerFacts", "model_facts", "read_model", "read_server"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """The server's version, for example "2.51.0"."""

    version: str

    @property
    def abilities(self) -> Abilities:
        """What a server of this version can do."""
        return abilities_of(self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """One model's configuration.

    `inputs` and `outputs` are its tensors by name. `steps` are the names of the
    models inside an ensemble, in order. `parameters` are the strings of its
    `parameters` block. `is_decoupled` may be False for an ensemble of a
    decoupled model, which inherits the policy. `honours_timeout`: the request
    parameter `timeout` ends a wait in the model's queue. `instances` are those of
    all devices. `max_batch_size` is 0 for a model that does not batch.
    """

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    instances: int = 1
    fingerprint: str = ""
    is_ensemble: bool = False
    is_decoupled: bool = True
    steps: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    honours_timeout: bool = False
    max_batch_size: int = 0

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
    return model_facts(name, answer.config)


def model_facts(name: str, config: Any) -> ModelFacts:
    """Return the facts in a `ModelConfig` message."""
    is_batched = config.max_batch_size > 0
    return ModelFacts(
        name=name,
        inputs={tensor.name: _spec(tensor, is_batched=is_batched) for tensor in config.input},
        outputs={tensor.name: _spec(tensor, is_batched=is_batched) for tensor in config.output},
        instances=max(1, sum(group.count * max(1, len(group.gpus)) for group in config.instance_group)),
        fingerprint=hashlib.sha256(config.SerializeToString(deterministic=True)).hexdigest()[:16],
        is_ensemble=config.platform == "ensemble" or config.HasField("ensemble_scheduling"),
        is_decoupled=config.model_transaction_policy.decoupled,
        steps=tuple(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step)),
        parameters={key: value.string_value for key, value in sorted(config.parameters.items())},
        honours_timeout=_honours_timeout(config),
        max_batch_size=config.max_batch_size,
    )


def _honours_timeout(config: Any) -> bool:
    """Return whether a request's timeout can only shorten a default; without a default it is ignored."""
    if not config.HasField("dynamic_batching"):
        return False
    policy = config.dynamic_batching.default_queue_policy
    return bool(policy.allow_timeout_override and policy.default_timeout_microseconds > 0)


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
