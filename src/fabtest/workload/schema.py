"""What may be written in a workload file, every key with its unit and default.

``docs/traffic.md`` is checked against this; ``json_schema()`` is for editors.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from fabtest.roce.dcqcn import PROFILES
from fabtest.workload.units import parse_rate, parse_size, parse_time


def _size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{value!r} is not a size: write it as 64KB, 4MB or 1GiB")
    return parse_size(value)


def _time(value: object) -> int:
    return parse_time(str(value))


def _rate(text: str) -> str:
    parse_rate(text, 1)
    return text


def _profile(text: str) -> str:
    if text and text not in PROFILES:
        raise ValueError(f"{text!r} is not a DCQCN profile: one of {', '.join(PROFILES)}")
    return text


Size = Annotated[int, BeforeValidator(_size, json_schema_input_type=str | int), Field(ge=1, le=1 << 40)]
Time = Annotated[int, BeforeValidator(_time, json_schema_input_type=str), Field(ge=0, le=24 * 3600 * 10**9)]
Rate = Annotated[str, AfterValidator(_rate)]
Pair = Annotated[list[str], Field(min_length=2, max_length=2)]
Dscp = Annotated[int, Field(ge=0, le=63)]


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Job(_Spec):
    """One pattern of traffic among some ranks. A rank is a GPU; its NIC is the one that serves it."""

    servers: list[str] | Literal["all"] = Field("all", description="servers that take part, or all of the fabric")
    first: int = Field(0, ge=0, le=100_000, description="only the first so many of those servers; 0: all")
    rails: list[int] | Literal["all"] = Field("all", description="rails (NIC numbers) that take part")
    qps: int = Field(1, ge=1, le=1024, description="queue pairs per pair of ranks; messages go round-robin")
    message_size: Size = Field(
        1 << 20, le=1 << 31, description="bytes of a message; collectives cut their steps into such"
    )
    verb: Literal["send", "write"] = Field("write", description="how data is moved")
    start: Time = Field(0, description="when it starts")
    stagger: Time = Field(0, description="each rank starts so much after the one before")


class _Stream(Job):
    duration: Time = Field(5 * 10**9, description="for how long")
    size: Size | None = Field(None, description="bytes per queue pair instead of a duration")
    rate: Rate | None = Field(None, description="per queue pair, of payload; none: as fast as acknowledgements come")
    service: Literal["rc", "uc"] = Field("rc", description="uc: no acknowledgements; needs a rate")
    outstanding: int = Field(2, ge=1, le=1024, description="messages a queue pair has posted at a time")


class PointToPoint(_Stream):
    """`point-to-point`: pairs of servers, NIC r to NIC r; none given: the first to the last."""

    pattern: Literal["point-to-point"]
    pairs: list[Pair] = Field(default_factory=list, description="source and destination")
    bidirectional: bool = False


class Incast(_Stream):
    """`incast`: every other server sends to one."""

    pattern: Literal["incast"]
    to: str = Field("", description="the receiver; the first server if not given")


class Outcast(_Stream):
    """`outcast`: one server sends to every other."""

    pattern: Literal["outcast"]
    sender: str = Field("", description="the sender; the first server if not given")


class Permutation(_Stream):
    """`permutation`: every NIC sends to one NIC of another server and receives from one."""

    pattern: Literal["permutation"]
    across: bool = Field(True, description="prefer receivers behind another leaf")


class _Collective(Job):
    size: Size = Field(4 << 20, description="bytes of the buffer of each rank, as in nccl-tests")
    iterations: int = Field(1, ge=1, le=1000, description="one after the other")
    scope: Literal["per-rail", "flat"] = Field("flat", description="one group per rail, or one of all ranks")


class RingAllreduce(_Collective):
    """`ring-allreduce`: 2(n-1) steps of size/n around a ring."""

    pattern: Literal["ring-allreduce"]
    scope: Literal["per-rail", "flat"] = Field("per-rail", description="a ring per rail, or one of all ranks")


class TreeAllreduce(_Collective):
    """`tree-allreduce`: up a binary tree and down again."""

    pattern: Literal["tree-allreduce"]


class ButterflyAllreduce(_Collective):
    """`butterfly-allreduce`: recursive halving and doubling; a power of two of ranks."""

    pattern: Literal["butterfly-allreduce"]


class Allgather(_Collective):
    """`allgather`: n-1 steps of size/n around a ring."""

    pattern: Literal["allgather"]


class ReduceScatter(_Collective):
    """`reduce-scatter`: n-1 steps of size/n around a ring."""

    pattern: Literal["reduce-scatter"]


class AllToAll(_Collective):
    """`all-to-all`: every rank sends size/n to every other, as expert parallelism does."""

    pattern: Literal["all-to-all"]
    staged: bool = Field(True, description="step k: to the k-th next rank, when step k-1 has come; else all at once")


class Pipeline(Job):
    """`pipeline`: micro-batches go through the servers forward, and gradients come back."""

    pattern: Literal["pipeline"]
    microbatches: int = Field(8, ge=1, le=10_000)
    size: Size = Field(1 << 20, description="activations of a micro-batch between two stages")


class ParameterServer(Job):
    """`parameter-server`: workers push gradients to servers and get parameters back."""

    pattern: Literal["parameter-server"]
    parameter_servers: int = Field(1, ge=1, le=10_000, description="the first so many servers")
    size: Size = Field(4 << 20, description="gradients of a worker, divided over the parameter servers")
    iterations: int = Field(1, ge=1, le=1000)


class StorageRead(_Stream):
    """`storage-read`: clients read from storage servers with RDMA READ."""

    pattern: Literal["storage-read"]
    storage: list[str] = Field(default_factory=list, description="storage servers; the last server if not given")


class Inference(Job):
    """`inference`: clients send requests and get responses; many, small, latency counts."""

    pattern: Literal["inference"]
    clients: list[str] = Field(default_factory=list, description="the front ends; the first server if not given")
    request_size: Size = Field(4 << 10, description="bytes of a request")
    response_size: Size = Field(64 << 10, description="bytes of a response")
    requests: int = Field(100, ge=1, le=1_000_000, description="per client and server")
    arrival: Time = Field(
        10**7, description="mean time between requests of a client NIC to a server NIC, a Poisson process each"
    )


class FineTune(Job):
    """`fine-tune`: GPUs of a server reduce over NVLink; the network sees training data and checkpoints."""

    pattern: Literal["fine-tune"]
    storage: list[str] = Field(default_factory=list, description="storage servers; the last server if not given")
    steps: int = Field(4, ge=1, le=10_000)
    batch_size: Size = Field(1 << 20, description="training data each server reads per step")
    gradient_size: Size = Field(16 << 20, description="what its GPUs exchange among themselves per step")
    checkpoint_size: Size = Field(8 << 20, description="what each server writes at the end")


class BackgroundTcp(_Spec):
    """`background-tcp`: iperf3 beside the RoCE traffic."""

    pattern: Literal["background-tcp"]
    pairs: list[Pair] = Field(default_factory=list, description="client and server; none: first and last")
    streams: int = Field(1, ge=1, le=128, description="parallel connections")
    rate: Rate | None = Field(None, description="per connection; none: what TCP reaches")
    duration: Time = Field(5 * 10**9, description="for how long")
    start: Time = Field(0, description="when it starts")


AnyJob = (
    PointToPoint | Incast | Outcast | Permutation | RingAllreduce | TreeAllreduce | ButterflyAllreduce | Allgather
    | ReduceScatter | AllToAll | Pipeline | ParameterServer | StorageRead | Inference | FineTune | BackgroundTcp
)  # fmt: skip
PATTERNS: dict[str, type[BaseModel]] = {
    model.model_fields["pattern"].annotation.__args__[0]: model for model in AnyJob.__args__
}


class TransportOptions(_Spec):
    """How queue pairs behave."""

    mtu: Literal[256, 512, 1024, 2048, 4096] = Field(4096, description="path MTU in bytes")
    window: int = Field(64, ge=1, le=1 << 20, description="packets a queue pair has on their way at most")
    ack_every: int = Field(16, ge=1, le=1 << 16, description="packets per acknowledgement within a message")
    timeout: Time = Field(200_000_000, ge=1_000_000, description="without an acknowledgement, before all is sent again")
    retries: int = Field(7, ge=0, le=7, description="timeouts in a row before a queue pair fails")
    source_port: Literal["rdma-core", "per-qp", "fixed", "random"] = Field("per-qp", description="UDP source port")
    dscp: Dscp | None = Field(None, description="of data; none: the fabric's RoCE DSCP")
    ecn: bool = Field(True, description="packets may be marked")
    congestion_control: Annotated[str, AfterValidator(_profile)] = Field(
        "", description="DCQCN profile: dcqcn-2015, nvidia or hpcc; none: no rate control"
    )
    line_rate: Rate = Field("10Gbps", description="where DCQCN starts, in the lab")
    dilation: float = Field(1.0, ge=1.0, le=1e6, description="how many times slower the lab is than the fabric")
    cross_rail: Literal["auto", "nvlink", "fabric"] = Field(
        "auto", description="nvlink: data for another rail changes rails inside the server (PXN); auto: in rail-only"
    )


class WorkloadSpec(_Spec):
    """A workload file: jobs side by side."""

    name: str = Field("", description="the file's name if not given")
    description: str = ""
    seed: int = Field(1, ge=0, le=2**32 - 1, description="of everything that is drawn: QPNs, PSNs, pairs, arrivals")
    limit: Time = Field(120 * 10**9, description="after that the run is ended, done or not")
    transport: TransportOptions = Field(default_factory=TransportOptions)
    jobs: list[Annotated[AnyJob, Field(discriminator="pattern")]] = Field(min_length=1, max_length=64)


def json_schema() -> dict[str, Any]:
    """JSON Schema of workload files."""
    schema = WorkloadSpec.model_json_schema()
    # One job may stand at the top of the file, without `jobs:`.
    whole = {
        key: schema.pop(key) for key in ("properties", "required", "additionalProperties", "type") if key in schema
    }
    top = {key: value for key, value in whole["properties"].items() if key != "jobs"}
    definitions = schema["$defs"]
    short = []
    for name in [model.__name__ for model in PATTERNS.values()]:
        single = dict(definitions[name])
        single["properties"] = {**top, **single["properties"]}
        short.append(single)
    schema["anyOf"] = [whole, *short]
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "fabtest workload"
    return schema
