"""What may be written in a topology file, every key with its unit and default.

These are the words of the file, not the fabric: ``load`` turns them into ``fabtest.model`` values, which share no
class with them. ``json_schema()`` is what editors use; ``docs/topology.md`` is checked against it.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from fabtest.topology.units import NAME, parse_breakout, parse_speed

HASH_FIELDS = (
    "IN_PORT", "DST_MAC", "SRC_MAC", "ETHERTYPE", "VLAN_ID", "IP_PROTOCOL", "DST_IP", "SRC_IP", "L4_DST_PORT",
    "L4_SRC_PORT", "INNER_DST_MAC", "INNER_SRC_MAC", "INNER_ETHERTYPE", "INNER_IP_PROTOCOL", "INNER_DST_IP",
    "INNER_SRC_IP", "INNER_L4_DST_PORT", "INNER_L4_SRC_PORT", "IPV6_FLOW_LABEL",
)  # fmt: skip


#: A Docker image reference: registry and path, tag, digest (distribution/reference grammar, lower-cased names).
IMAGE = r"^(|[a-z0-9][a-z0-9._/:-]{0,200}(@sha256:[0-9a-f]{64})?)$"


#: A path below a folder: no part of it leads out.
CONFIG = r"^(\.|[A-Za-z0-9_][A-Za-z0-9 ._+-]{0,127}(/[A-Za-z0-9_][A-Za-z0-9 ._+-]{0,127}){0,8})$"


def _name(text: str) -> str:
    if not NAME.match(text):
        raise ValueError(
            f"{text!r} is not a host name: lower-case letters, digits and inner hyphens, at most 32 characters"
        )
    return text


def _speed(text: str) -> str:
    parse_speed(text)
    return text


def _breakout(text: str) -> str:
    parse_breakout(text)
    return text


def _v4(text: str) -> str:
    IPv4Network(text)
    return text


def _v6(text: str) -> str:
    IPv6Network(text)
    return text


Name = Annotated[str, AfterValidator(_name)]
Speed = Annotated[str, AfterValidator(_speed), Field(examples=["400G"])]
Breakout = Annotated[str, AfterValidator(_breakout), Field(examples=["2x400G"])]
Pool4 = Annotated[str, AfterValidator(_v4)]
Pool6 = Annotated[str, AfterValidator(_v6)]
Asn = Annotated[int, Field(ge=1, le=4294967294)]
Dscp = Annotated[int, Field(ge=0, le=63)]
Class = Annotated[int, Field(ge=0, le=7)]


class _Words(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SwitchSpec(_Words):
    """The hardware of the switches of one tier."""

    hwsku: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$")] = Field(
        "Generic-32x400G", description="SONiC hardware SKU, written to DEVICE_METADATA"
    )
    platform: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$")] = Field(
        "x86_64-kvm_x86_64-r0", description="SONiC platform, written to DEVICE_METADATA"
    )
    ports: int = Field(32, ge=1, le=512, description="front-panel ports (the radix before break-out)")
    port_speed: Speed = Field("400G", description="speed of a front-panel port")
    lanes_per_port: int | None = Field(None, ge=1, le=16, description="lanes of a port; default by speed")
    first_lane: int = Field(1, ge=0, le=1024, description="number of the first lane of the first port")
    downlink_breakout: Breakout | None = Field(None, description="break-out of ports towards servers, as 2x400G")
    uplink_breakout: Breakout | None = Field(None, description="break-out of ports towards the next tier")
    fec: Literal["rs", "fc", "none"] = Field("rs", description="forward error correction of every port")


class SwitchesSpec(_Words):
    """Hardware per tier; a tier that is not given has the defaults of `leaf`."""

    leaf: SwitchSpec = Field(default_factory=SwitchSpec)
    spine: SwitchSpec | None = None
    superspine: SwitchSpec | None = None


class ServerSpec(_Words):
    """What every server has."""

    nics: int = Field(1, ge=1, le=32, description="NICs per server (clos; in rail fabrics it is the number of rails)")
    gpus_per_nic: int = Field(1, ge=0, le=16, description="GPUs each NIC serves")
    nic_speed: Speed | None = Field(
        None, description="speed of a NIC over all its planes; default: what the leaf port and the planes give"
    )
    attachment: Literal["routed", "vlan"] = Field(
        "routed", description="routed: a /31 per NIC; vlan: one VLAN and SVI per leaf, untagged"
    )


class CableSpec(_Words):
    """Cable lengths in metres, whole."""

    server: int = Field(5, ge=1, le=2000)
    leaf_spine: int = Field(40, ge=1, le=40000)
    spine_superspine: int = Field(300, ge=1, le=40000)


class AddressingSpec(_Words):
    """Address pools; they must not overlap."""

    families: Literal["ipv4", "ipv6", "dual"] = "ipv4"
    fabric_links: Literal["numbered", "unnumbered"] = Field(
        "numbered", description="numbered: /31 and /127; unnumbered: IPv6 link-local next hops (RFC 8950)"
    )
    server_pool: Pool4 = Field("10.0.0.0/8", description="one block per leaf, /31 per NIC port")
    fabric_pool: Pool4 = Field("172.16.0.0/12", description="/31 per link between switches")
    loopback_pool: Pool4 = Field("192.168.0.0/16", description="/32 per switch; also the BGP router id")
    server_pool_v6: Pool6 = "fd10::/32"
    fabric_pool_v6: Pool6 = "fd16::/32"
    loopback_pool_v6: Pool6 = "fd19::/48"
    leaf_prefix_length: int = Field(24, ge=16, le=30, description="size of a leaf's block of server addresses")


class BgpSpec(_Words):
    """eBGP as in RFC 7938."""

    leaf_asn: Asn = Field(4200100000, description="first leaf ASN; every leaf has its own")
    spine_asn: Asn = Field(4200010000, description="first spine ASN; spines of a plane (and pod) share one")
    superspine_asn: Asn = Field(4200000000, description="first super-spine ASN; those of a plane share one")
    keepalive: int = Field(3, ge=1, le=21845, description="seconds")
    holdtime: int = Field(9, ge=3, le=65535, description="seconds")
    connect_retry: int = Field(10, ge=1, le=65535, description="seconds")
    max_paths: int = Field(64, ge=1, le=256, description="ECMP width allowed")
    bfd: bool = False
    bfd_interval: int = Field(300, ge=50, le=60000, description="milliseconds, both directions")
    bfd_multiplier: int = Field(3, ge=2, le=255)


class HashSpec(_Words):
    """ECMP hashing."""

    fields: list[Literal[HASH_FIELDS]] = Field(  # type: ignore[valid-type]
        default_factory=lambda: ["SRC_IP", "DST_IP", "IP_PROTOCOL", "L4_SRC_PORT", "L4_DST_PORT"],
        min_length=1,
        description="fields of SONiC's SWITCH_HASH",
    )
    seed: Literal["per-switch", "per-tier"] | Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(
        "per-switch", description="per-switch: all differ; per-tier: as SONiC's switch.json; a number: all the same"
    )


class EcnSpec(_Words):
    """The marking curve of a 100 Gbit/s port; thresholds scale with port speed."""

    kmin: int = Field(250_000, ge=1, le=2**31 - 1, description="bytes")
    kmax: int = Field(1_000_000, ge=1, le=2**31 - 1, description="bytes")
    pmax: int = Field(5, ge=0, le=100, description="per cent at kmax")


class WatchdogSpec(_Words):
    """PFC watchdog, SONiC's PFC_WD; times in milliseconds."""

    action: Literal["drop", "forward", "alert"] = "drop"
    detection_time: int = Field(200, ge=100, le=5000)
    restoration_time: int = Field(200, ge=100, le=60000)
    poll_interval: int = Field(200, ge=100, le=1000)


class QosSpec(_Words):
    """A QoS profile and what differs from it."""

    profile: Literal["roce-lossless", "lossy"] = "roce-lossless"
    roce_dscp: Dscp = Field(26, description="DSCP of RoCE data")
    roce_tc: Class = Field(3, description="traffic class, queue and priority group of RoCE data")
    cnp_dscp: Dscp = Field(48, description="DSCP of congestion notification packets")
    cnp_tc: Class = Field(6, description="traffic class and (strict) queue of CNPs")
    ecn: EcnSpec | None = None
    watchdog: WatchdogSpec | None = None
    roce_weight: int = Field(60, ge=1, le=100, description="DWRR weight of the RoCE queue")
    best_effort_weight: int = Field(20, ge=1, le=100, description="DWRR weight of queue 0")
    buffer_size: int = Field(67_108_864, ge=1_000_000, description="packet buffer of a switch in bytes")
    dynamic_th: int = Field(0, ge=-8, le=7, description="alpha = 2^n of the lossless priority group")


class FailoverSpec(_Words):
    """Longest outage allowed, milliseconds."""

    carrier_loss: int = Field(1000, ge=1, description="after a failure with loss of carrier")
    silent_loss: int = Field(1000, ge=1, description="after a silent failure, added to the detection time")


class EmulationSpec(_Words):
    """How a lab runs the fabric; nothing here reaches the rendered files."""

    runtime: Literal["netns", "containerlab"] = Field(
        "netns", description="network namespaces, or containers through containerlab; `lab-up --runtime` overrides it"
    )
    qp_hash: bool = Field(
        False, description="ECMP hashes the destination queue pair too (E-ECMP), with each switch's seed as salt"
    )
    sonic_image: str = Field(
        "", pattern=IMAGE, description="containerlab: image of the switches; default `fabtest/sonic-lite`"
    )
    server_image: str = Field(
        "", pattern=IMAGE, description="containerlab: image of the servers; default `fabtest/host`"
    )
    cpu: float | None = Field(None, gt=0, le=1024, description="containerlab: CPUs a switch may use; default: all")
    memory: str = Field(
        "",
        pattern=r"^(|[0-9]{1,6}[kKmMgG][bB])$",
        description="containerlab: memory a switch may use, like `2GB`; default: all",
    )


QosWord = Literal["roce-lossless", "lossy"]


class _Common(_Words):
    name: Name | None = Field(None, description="name of the fabric; default: the file's name")
    description: str = ""
    mtu: int = Field(9100, ge=1280, le=9216, description="IP MTU in bytes of every link")
    addressing: AddressingSpec = Field(default_factory=AddressingSpec)
    bgp: BgpSpec = Field(default_factory=BgpSpec)
    hash: HashSpec = Field(default_factory=HashSpec)
    qos: QosWord | QosSpec = "roce-lossless"
    failover: FailoverSpec = Field(default_factory=FailoverSpec)
    emulation: EmulationSpec = Field(default_factory=EmulationSpec)


class _Generated(_Common):
    switches: SwitchesSpec = Field(default_factory=SwitchesSpec)
    server: ServerSpec = Field(default_factory=ServerSpec)
    cables: CableSpec = Field(default_factory=CableSpec)
    spines: int = Field(ge=0, le=4096, description="spines per plane (two tiers) or per pod and plane (three tiers)")
    superspines: int = Field(0, ge=0, le=4096, description="super-spines per plane; more than 0 makes three tiers")
    superspine_groups: int = Field(
        1, ge=1, le=512, description="spine i of a pod joins group i modulo this; 1: every super-spine"
    )
    links_per_spine: int = Field(1, ge=1, le=64, description="parallel links of each leaf-spine pair")
    links_per_superspine: int = Field(1, ge=1, le=64, description="parallel links of each spine-super-spine pair")


class ClosSpec(_Generated):
    """`clos`: leaves and spines, in pods under super-spines if asked; all NICs of a server on its leaf."""

    kind: Literal["clos"]
    pods: int = Field(1, ge=1, le=512, description="pods; more than one needs super-spines")
    leaves: int = Field(ge=1, le=4096, description="leaves per pod")
    servers_per_leaf: int = Field(ge=1, le=512)


class RailSpec(_Generated):
    """`rail`: NIC r of every server of a scalable unit goes to leaf r of that unit."""

    kind: Literal["rail"]
    units: int = Field(1, ge=1, le=255, description="scalable units")
    rails: int = Field(ge=1, le=31, description="rails, which is NICs per server and leaves per unit")
    servers_per_unit: int = Field(ge=1, le=512)


class RailOnlySpec(_Generated):
    """`rail-only`: no link between rails; `spines` are per rail and needed only for more than one unit."""

    kind: Literal["rail-only"]
    units: int = Field(1, ge=1, le=255, description="scalable units")
    rails: int = Field(ge=1, le=31, description="rails, which is NICs per server and leaves per unit")
    servers_per_unit: int = Field(ge=1, le=512)
    spines: int = Field(0, ge=0, le=4096, description="spines per rail")


class DualPlaneSpec(_Generated):
    """`dual-plane`: every NIC split into one port per plane; the planes share no switch."""

    kind: Literal["dual-plane"]
    planes: int = Field(2, ge=2, le=8)
    units: int = Field(1, ge=1, le=255, description="scalable units")
    rails: int = Field(ge=1, le=31, description="rails, which is NICs per server and leaves per unit and plane")
    servers_per_unit: int = Field(ge=1, le=512)


class CustomSwitch(_Words):
    """One switch of a `custom` fabric."""

    name: Name
    tier: Literal["leaf", "spine", "superspine"] = "leaf"
    plane: int = Field(1, ge=1, le=8)
    unit: int | None = Field(None, ge=1, le=4096)
    rail: int | None = Field(None, ge=1, le=31)
    asn: Asn | None = Field(None, description="default: as in the scheme under `bgp`")
    model: SwitchSpec = Field(default_factory=SwitchSpec)
    config: Annotated[str, Field(pattern=CONFIG)] | None = Field(
        None, description="with `configs`: the switch's folder (or config_db.json file) below it; default: its name"
    )


class CustomServer(_Words):
    """One server of a `custom` fabric; its NICs are the ports its links name, eth1 upwards."""

    name: Name
    unit: int | None = Field(None, ge=1, le=4096)
    gpus_per_nic: int = Field(1, ge=0, le=16)


class CustomLink(_Words):
    """A cable of a `custom` fabric."""

    a: str = Field(description="node:port, as leaf1:Ethernet0 or gpu1:eth1; without a port the next free one")
    b: str = Field(description="the other end")
    speed: Speed | None = Field(None, description="default: the ports' speed; both ends must agree")
    mtu: int | None = Field(None, ge=1280, le=9216)
    length: int = Field(40, ge=1, le=40000, description="metres")


class CustomSpec(_Common):
    """`custom`: nodes and links one by one, for copies of real fabrics."""

    kind: Literal["custom"]
    configs: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="folder of configurations to run as they are, relative to this file: <switch>/config_db.json and, "
        "where the switch's mode uses it, frr.conf",
    )
    nodes: list[CustomSwitch] = Field(min_length=1, description="the switches")
    servers: list[CustomServer] = Field(default_factory=list)
    links: list[CustomLink] = Field(min_length=1)


GeneratedSpec = ClosSpec | RailSpec | RailOnlySpec | DualPlaneSpec
TopologySpec = GeneratedSpec | CustomSpec

KINDS: dict[str, type[TopologySpec]] = {
    "clos": ClosSpec,
    "rail": RailSpec,
    "rail-only": RailOnlySpec,
    "dual-plane": DualPlaneSpec,
    "custom": CustomSpec,
}


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of topology files, for editors."""
    from pydantic import TypeAdapter

    union = Annotated[TopologySpec, Field(discriminator="kind")]
    schema: dict[str, Any] = TypeAdapter(union).json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fabtest topology",
        **schema,
    }
