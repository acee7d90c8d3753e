"""Which FRR configuration a SONiC switch runs, by ``docker_routing_config_mode`` and ``frr_mgmt_framework_config``.

The routing container's docker_init.sh decides: ``split`` and ``split-unified`` leave the file to its owner; the others
make it from CONFIG_DB, ``separated`` (and no mode) with bgpcfgd's templates, or with frrcfgd's where the management
framework is on; ``unified`` always with frrcfgd's. Pure.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from fabtest.sonic.bgpcfgd import bgpcfgd_frr
from fabtest.sonic.db import ConfigDb
from fabtest.sonic.frr_config import BgpConfig, read_frr
from fabtest.sonic.frrcfgd import frrcfgd_frr


class RoutingForm(StrEnum):
    """Where FRR's configuration comes from."""

    GIVEN = "frr.conf"
    BGPCFGD = "bgpcfgd"
    FRRCFGD = "frr-mgmt"


#: Tables that the generated forms follow; a change of any of them is a change of FRR's configuration.
ROUTING_TABLES = (
    "BGP_NEIGHBOR", "BGP_PEER_RANGE", "BGP_INTERNAL_NEIGHBOR", "BGP_MONITORS", "BGP_DEVICE_GLOBAL", "BGP_GLOBALS",
    "BGP_GLOBALS_AF", "BGP_GLOBALS_AF_NETWORK", "BGP_GLOBALS_AF_AGGREGATE_ADDR", "BGP_GLOBALS_LISTEN_PREFIX",
    "BGP_NEIGHBOR_AF", "BGP_PEER_GROUP", "BGP_PEER_GROUP_AF", "ROUTE_REDISTRIBUTE", "ROUTE_MAP", "ROUTE_MAP_SET",
    "PREFIX_SET", "PREFIX", "STATIC_ROUTE", "DEVICE_NEIGHBOR", "DEVICE_NEIGHBOR_METADATA", "DEVICE_METADATA",
    "INTERFACE", "LOOPBACK_INTERFACE", "VLAN_INTERFACE",
)  # fmt: skip


@dataclass(frozen=True)
class RoutingConfig:
    """``text`` is what FRR is given ("" where there is none)."""

    form: RoutingForm
    text: str
    warnings: tuple[str, ...]

    @cached_property
    def bgp(self) -> BgpConfig | None:
        """What it says about BGP."""
        return read_frr(self.text)


#: In a node's folder: the digest of the configuration its FRR was last brought to, and what it refused, below the
#: digest of that.
APPLIED, REFUSED = "frr.applied", "frr.refused"


def followed(config: ConfigDb) -> tuple[str, str]:
    """FRR's configuration as CONFIG_DB says it, whatever the order of its rows, and its digest."""
    rows = {table: dict(sorted(config.get(table, {}).items())) for table in ROUTING_TABLES}
    text = routing_config(rows, None).text
    return text, hashlib.sha256(text.encode(errors="replace")).hexdigest()


def routing_form(config: ConfigDb) -> RoutingForm:
    """By the two fields of DEVICE_METADATA."""
    metadata = config.get("DEVICE_METADATA", {}).get("localhost", {})
    mode = str(metadata.get("docker_routing_config_mode", "") or "separated")
    if mode in ("split", "split-unified"):
        return RoutingForm.GIVEN
    managed = str(metadata.get("frr_mgmt_framework_config", "false")) == "true"
    return RoutingForm.FRRCFGD if managed or mode == "unified" else RoutingForm.BGPCFGD


def routing_config(config: ConfigDb, given: str | None) -> RoutingConfig:
    """What FRR runs on this switch; ``given`` is the ``frr.conf`` that lies beside CONFIG_DB, if any."""
    form = routing_form(config)
    if form is RoutingForm.GIVEN:
        if given is None:
            what = "docker_routing_config_mode leaves FRR's configuration to frr.conf, and there is none: no BGP runs"
            return RoutingConfig(form, "", (f"DEVICE_METADATA|localhost: {what}",))
        return RoutingConfig(form, given, ())
    text, warnings = bgpcfgd_frr(config) if form is RoutingForm.BGPCFGD else frrcfgd_frr(config)
    if given is not None:
        warnings = (
            *warnings,
            f"frr.conf is not used: with this docker_routing_config_mode SONiC makes it from CONFIG_DB ({form} form)",
        )
    return RoutingConfig(form, text, warnings)
