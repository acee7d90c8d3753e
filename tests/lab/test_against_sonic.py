"""A lite leaf given the config_db.json of a leaf that SONiC's own daemons ran shows the same keys and fields.

The dumps are of release 202411 (syncd on the VS SAI, orchagent, portsyncd, portmgrd, intfmgrd, buffermgrd,
neighsyncd). What a lite node leaves out on purpose is listed here, each with its reason; anything else is a fault.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from fabtest.litenode import database
from fabtest.runtime.base import LiveNode
from fabtest.sonic.db import DbId
from tests.lab.conftest import eventually, running

TOPOLOGY = """
kind: custom
nodes:
  - {name: leaf1, model: {lanes_per_port: 4, port_speed: 100G, first_lane: 25}}
  - {name: spine1, tier: spine, model: {lanes_per_port: 4, port_speed: 100G}}
  - {name: spine2, tier: spine, model: {lanes_per_port: 4, port_speed: 100G}}
servers:
  - {name: gpu1}
  - {name: gpu2}
links:
  - {a: "leaf1:Ethernet0", b: "spine1:Ethernet0"}
  - {a: "leaf1:Ethernet4", b: "spine2:Ethernet0"}
  - {a: gpu1, b: "leaf1:Ethernet8"}
  - {a: gpu2, b: "leaf1:Ethernet12"}
"""

NO_ASIC = "no ASIC behind it"
NO_QUEUES = "queues, priority groups and buffers are configuration only"
ABSENT_TABLES: dict[DbId, dict[str, str]] = {
    DbId.APPL: {},
    DbId.STATE: {
        "ACL_STAGE_CAPABILITY_TABLE": "no ACLs",
        "ASIC_TEMPERATURE_INFO": NO_ASIC,
        "BUFFER_MAX_PARAM_TABLE": NO_QUEUES,
        "DEBUG_COUNTER_CAPABILITIES": NO_ASIC,
        "FLOW_COUNTER_CAPABILITY_TABLE": NO_ASIC,
        "MGMT_PORT_TABLE": "no management port",
        "PBH_CAPABILITIES": NO_ASIC,
        "PORT_OPERR_TABLE": "no optics and no FEC",
        "ROUTE_TABLE": "no default route",
        "WARM_RESTART_TABLE": "no warm restart",
        "WARM_RESTART_ENABLE_TABLE": "no warm restart",
    },
    DbId.COUNTERS: {
        "COUNTERS_BUFFER_POOL_NAME_MAP": NO_QUEUES,
        "COUNTERS_GLOBAL_NAT": "no NAT",
        "COUNTERS_LAG_NAME_MAP": "no port channels",
        "COUNTERS_PG_INDEX_MAP": NO_QUEUES,
        "COUNTERS_PG_NAME_MAP": NO_QUEUES,
        "COUNTERS_PG_PORT_MAP": NO_QUEUES,
        "COUNTERS_QUEUE_INDEX_MAP": NO_QUEUES,
        "COUNTERS_QUEUE_NAME_MAP": NO_QUEUES,
        "COUNTERS_QUEUE_PORT_MAP": NO_QUEUES,
        "COUNTERS_QUEUE_TYPE_MAP": NO_QUEUES,
        "PERIODIC_WATERMARKS": NO_QUEUES,
        "PERSISTENT_WATERMARKS": NO_QUEUES,
        "USER_WATERMARKS": NO_QUEUES,
    },
}
#: Fields of a table that a lite node has no source for. Port counters: the kernel counts eight things, an ASIC hundreds.
ABSENT_FIELDS: dict[str, str] = {"SWITCH_CAPABILITY": NO_ASIC, "COUNTERS": "what the kernel counts"}
#: What a lite node has and this dump has not: fpmsyncd needs SONiC's zebra plug-in, lldp and bgpmon did not run.
BEYOND = {"ROUTE_TABLE", "LLDP_ENTRY_TABLE", "NEIGH_STATE_TABLE", "SWITCH_TABLE", "RATES"}

#: The VS SAI counts no packets; these are what portstat (sonic-utilities) reads on hardware.
PORTSTAT = {
    f"SAI_PORT_STAT_IF_{way}_{what}" for way in ("IN", "OUT") for what in ("OCTETS", "UCAST_PKTS", "ERRORS", "DISCARDS")
}


def wait_for_address(node: LiveNode, address: str) -> None:
    eventually(lambda: address in node.exec(["ip", "-o", "address"]).stdout, 3)


def table_of(db: DbId, key: str) -> str:
    return key.partition(db.separator)[0]


def test_keys_and_fields_are_sonics(shared: Path) -> None:
    reference = shared / "data" / "sonic-vs-202411" / "leaf4"
    with running(TOPOLOGY, "t-leaf4") as lab:
        leaf = lab.node("leaf1")
        config = json.loads((reference / "config_db.json").read_text())
        db = leaf.db(DbId.CONFIG)
        db.flushdb()
        database.load_config(leaf.folder, config)  # type: ignore[attr-defined]
        far = [
            row.split("|")[1]
            for row in config["INTERFACE"]
            if "|" in row and row.startswith(("Ethernet0|", "Ethernet4|"))
        ]
        for spine, near in (("spine1", far[0]), ("spine2", far[1])):
            gateway = near.rpartition(".")[0] + "." + str(int(near.rpartition(".")[2].partition("/")[0]) + 1) + "/31"
            lab.node(spine).db(DbId.CONFIG).hset(f"INTERFACE|Ethernet0|{gateway}", mapping={"NULL": "NULL"})
            wait_for_address(lab.node(spine), gateway)
            wait_for_address(leaf, near)
            leaf.exec(["ping", "-c", "1", "-W", "1", gateway.partition("/")[0]])
        # Only the rows of the configuration given: the topology's own neighbours go with their addresses.
        want = {name: json.loads((reference / f"{name}_DB.json").read_text()) for name in ("APPL", "STATE", "COUNTERS")}
        deadline = time.monotonic() + 8  # counters come by the second
        while problems(leaf, want) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert problems(leaf, want) == []


def problems(leaf: Any, want: dict[str, dict[str, dict[str, str]]]) -> list[str]:
    found: list[str] = []
    for db in (DbId.APPL, DbId.STATE, DbId.COUNTERS):
        redis = leaf.db(db)
        mine = {key: set(redis.hgetall(key)) for key in redis.keys("*") if redis.type(key) == "hash"}
        theirs = {key: set(row) for key, row in want[db.name].items()}
        if db is DbId.COUNTERS:  # object ids differ from run to run: compare by port
            mine, theirs = (
                by_port(mine, redis.hgetall("COUNTERS_PORT_NAME_MAP")),
                by_port(theirs, want["COUNTERS"]["COUNTERS_PORT_NAME_MAP"]),
            )
        for key, fields in theirs.items():
            table = table_of(db, key)
            if table in ABSENT_TABLES[db]:
                continue
            if key not in mine:
                found.append(f"{db.name} {key} is missing")
            elif fields - mine[key] and table not in ABSENT_FIELDS:
                found.append(f"{db.name} {key} lacks {sorted(fields - mine[key])}")
        for key, fields in mine.items():
            table = table_of(db, key)
            if table in BEYOND:
                continue
            if table in ABSENT_TABLES[db]:
                found.append(f"{db.name} {key} is listed as absent")
            elif key not in theirs:
                found.append(f"{db.name} {key} is not SONiC's")
            elif extra := fields - theirs[key] - (PORTSTAT if table == "COUNTERS" else set()):
                found.append(f"{db.name} {key} has {sorted(extra)}, which SONiC has not")
    return found


def by_port(rows: dict[str, set[str]], names: dict[str, str]) -> dict[str, set[str]]:
    """COUNTERS:oid of ports as COUNTERS:port; other objects (queues, priority groups, buffer pools) left out."""
    port_of = {oid: port for port, oid in names.items()}
    found = {}
    for key, fields in rows.items():
        table, _, oid = key.partition(":")
        if table == "COUNTERS":
            if oid in port_of:
                found[f"COUNTERS:{port_of[oid]}"] = fields
        else:
            found[key] = fields
    return found
