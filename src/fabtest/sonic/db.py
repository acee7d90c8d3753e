"""SONiC's Redis databases: ids and separators of ``database_config.json`` (release 202605), and key building."""

from __future__ import annotations

from enum import Enum

from fabtest.model import Switch

#: CONFIG_DB as in config_db.json: table -> key -> field -> value. Values are strings, leaf-lists lists of strings.
Row = dict[str, "str | list[str]"]
Table = dict[str, Row]
ConfigDb = dict[str, Table]


class DbId(Enum):
    """A database: (number, key separator)."""

    APPL = (0, ":")
    ASIC = (1, ":")
    COUNTERS = (2, ":")
    CONFIG = (4, "|")
    FLEX_COUNTER = (5, ":")
    STATE = (6, "|")
    APPL_STATE = (14, ":")

    @property
    def number(self) -> int:
        """The argument of SELECT."""
        return self.value[0]

    @property
    def separator(self) -> str:
        """Between table and key."""
        return self.value[1]

    def key(self, table: str, *parts: str) -> str:
        """A Redis key of this database."""
        return self.separator.join((table, *parts))


def to_redis(row: Row) -> dict[str, str]:
    """A row as Redis holds it: leaf-lists become ``field@`` with commas; an empty row the NULL placeholder."""
    flat = {
        (f"{field}@" if isinstance(value, list) else field): (",".join(value) if isinstance(value, list) else value)
        for field, value in row.items()
    }
    return flat or {"NULL": "NULL"}


def from_redis(fields: dict[str, str]) -> Row:
    """The reverse of ``to_redis``."""
    return {
        field.removesuffix("@"): (value.split(",") if field.endswith("@") else value)
        for field, value in fields.items()
        if field != "NULL"
    }


def switch_json(switch: Switch) -> dict[str, str]:
    """APPL_DB ``SWITCH_TABLE:switch`` as docker-orchagent's switch.json.j2 fills it: where SONiC keeps hash seeds."""
    return {
        "ecmp_hash_seed": str(switch.hash.seed),
        "lag_hash_seed": str(switch.hash.seed),
        "fdb_aging_time": "600",
    }
