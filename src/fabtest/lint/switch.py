"""One configuration as rules see it: references followed, ranges written out, numbers read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fabtest.sonic.db import ConfigDb, Row
from fabtest.sonic.effective import rows_of


def text(value: object) -> str:
    """A field as text; a list with commas."""
    return ",".join(value) if isinstance(value, list) else "" if value is None else str(value)


def number(value: object) -> int | None:
    """A field as a number, or None."""
    digits = text(value).strip()
    if len(digits) > 20:  # more than 64 bits: no field has that
        return None
    try:
        return int(digits)
    except ValueError:
        return None


def listed(value: object) -> list[str]:
    """A field with commas (or a list) as its parts."""
    return [part.strip() for part in text(value).split(",") if part.strip()]


@dataclass(frozen=True)
class SwitchConfig:
    """A switch: its name and tables."""

    name: str
    config: ConfigDb

    def table(self, name: str) -> dict[str, Row]:
        """A table, empty if it is not there."""
        return self.config.get(name, {})

    def has(self, *names: str) -> bool:
        """Whether all of these tables are there."""
        return all(name in self.config for name in names)

    @cached_property
    def metadata(self) -> Row:
        """DEVICE_METADATA|localhost."""
        return self.table("DEVICE_METADATA").get("localhost", {})

    @cached_property
    def bindings(self) -> dict[str, Row]:
        """Port (or ``global``) -> its PORT_QOS_MAP fields; a key may name several ports with commas, as for orchagent."""
        found: dict[str, Row] = {}
        for key, row in self.table("PORT_QOS_MAP").items():
            for port in key.split(","):
                found[port] = {**found[port], **row} if port in found else row
        return found

    @cached_property
    def _binding_keys(self) -> dict[str, str]:
        return {port: key for key in self.table("PORT_QOS_MAP") for port in key.split(",")}

    def binding(self, port: str, field: str = "") -> str:
        """Where a port's PORT_QOS_MAP row (or a field of it) stands or would stand."""
        row = f"PORT_QOS_MAP|{self._binding_keys.get(port, port)}"
        return f"{row}|{field}" if field else row

    @cached_property
    def lossless(self) -> dict[str, set[str]]:
        """Port -> priorities with PFC, of the ports that have any."""
        found = {}
        for port, row in self.bindings.items():
            priorities = set(listed(row.get("pfc_enable")))
            if port != "global" and priorities:
                found[port] = priorities
        return found

    @cached_property
    def roce(self) -> bool:
        """Whether this switch has a lossless class: PFC somewhere, or ECN marking."""
        return bool(self.lossless) or any("ecn" in row for row in self.table("WRED_PROFILE").values())

    @cached_property
    def dynamic_buffers(self) -> bool:
        """DEVICE_METADATA buffer_model."""
        return text(self.metadata.get("buffer_model")) == "dynamic"

    @cached_property
    def frr_management(self) -> bool:
        """Whether FRR is configured from CONFIG_DB by frr-mgmt-framework."""
        return text(self.metadata.get("frr_mgmt_framework_config")) == "true"

    @cached_property
    def cable_lengths(self) -> dict[str, str]:
        """Port -> cable length as written."""
        return {port: text(v) for row in self.table("CABLE_LENGTH").values() for port, v in row.items()}

    @cached_property
    def fabric_ports(self) -> list[str]:
        """Ports that are cabled or routed, as far as the file tells."""
        named = {key.partition("|")[0] for key in self.table("INTERFACE")} | set(self.table("DEVICE_NEIGHBOR"))
        return [port for port in self.table("PORT") if port in named]

    def map_of(self, port: str, field: str, table: str) -> dict[str, str]:
        """A QoS map bound to a port: source -> target."""
        name = text(self.bindings.get(port, {}).get(field))
        return {source: text(target) for source, target in self.table(table).get(name, {}).items()}

    def queues(self, port: str) -> dict[int, Row]:
        """QUEUE rows of a port by queue."""
        return rows_of(self.config, "QUEUE", port)

    def groups(self, port: str) -> dict[int, Row]:
        """BUFFER_PG rows of a port by priority group."""
        return rows_of(self.config, "BUFFER_PG", port)

    def profile(self, row: Row) -> Row | None:
        """The buffer profile a BUFFER_PG or BUFFER_QUEUE row names, or None."""
        return self.table("BUFFER_PROFILE").get(text(row.get("profile")))

    def speed(self, port: str) -> int | None:
        """Mbit/s."""
        return number(self.table("PORT").get(port, {}).get("speed"))
