"""``python -m fabtest.litenode.container merge|load|run|frr``: a lite node that is a container of its own.

The container has wires ``eth1``, ``eth2``, ... as docker-sonic-vs has, and SONiC's files at their places. ``merge``
prints the configuration start-up will use (what sonic-cfggen does there), ``load`` fills CONFIG_DB, ``run`` makes
``Ethernet<n>`` of every wire and is the node's agent, ``frr`` makes a configuration (on its input) one for this FRR.

docker-sonic-vs copies frames between a wire and a TAP in user space; here ``Ethernet<n>`` is a macvlan in passthru
mode, with the same behaviour towards both sides: the carrier is the wire's, and a port that is shut down takes the
wire down, so that the far end sees it.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import time
from pathlib import Path

from fabtest.errors import FabtestError
from fabtest.litenode import database
from fabtest.litenode.agent import Agent, Place, run
from fabtest.litenode.intent import PortIntent, SwitchIntent, switch_intent
from fabtest.litenode.kernel import hash_by_qp
from fabtest.runtime.namespaces import write_sysctls
from fabtest.runtime.netlink import Batch, NetlinkSocket, hasten_neighbours
from fabtest.sonic.db import ConfigDb, DbId
from fabtest.sonic.lite_frr import lite_frr
from fabtest.sonic.sysctl import SWITCH_SYSCTLS

SONIC = Path("/etc/sonic")
REDIS = Path("/run/redis")
VTY = Path("/run/frr")
OWN_NETWORK = Path("/proc/self/ns/net")
LANE_MAP = Path("/usr/share/sonic/hwsku/lanemap.ini")
#: In this file the agent says that it runs, and with which pid.
READY = Path("/run/litenode.pid")
#: Ports whose wires CONFIG_DB had shut down; gone with the container's boot.
SHUT = Path("/run/litenode.shut")
#: Set in the environment where ECMP hashes the queue pair as well.
QP_HASH = "FABTEST_QP_HASH"


def merged(initial: ConfigDb, config: ConfigDb) -> ConfigDb:
    """Row by row, what the configuration says over what start-up says."""
    result: ConfigDb = {table: dict(rows) for table, rows in initial.items()}
    for table, rows in config.items():
        target = result.setdefault(table, {})
        for key, row in rows.items():
            target[key] = {**target.get(key, {}), **row}
    return result


def lane_map(text: str) -> dict[str, str]:
    """``lanemap.ini`` (``eth1:25,26,27,28`` per line): lanes -> wire."""
    found = {}
    for line in text.splitlines():
        wire, _, lanes = line.partition(":")
        if lanes:
            found[lanes.strip()] = wire.strip()
    return found


def wires(config: ConfigDb, lanes: dict[str, str]) -> dict[str, str]:
    """Port -> wire, of the ports whose lanes the map has."""
    found = {}
    for port, row in config.get("PORT", {}).items():
        value = row.get("lanes", "")
        wire = lanes.get(",".join(value) if isinstance(value, list) else value)
        if wire:
            found[port] = wire
    return found


class Ports:
    """The wires of this container and the ports on them."""

    def __init__(self, wire_of: dict[str, str]) -> None:
        self.wire_of = wire_of
        self._applied: dict[str, PortIntent] = {}
        try:  # what an agent before this one did; a fault may hold a wire down too, and that is not ours to mend
            self._shut = set(SHUT.read_text().split())
        except OSError:
            self._shut = set()

    def make(self, mac: str, kernel: NetlinkSocket) -> None:
        """``Ethernet<n>`` on every wire that is there; what exists is left as it is."""
        links = kernel.links()
        batch = Batch()
        for port, wire in self.wire_of.items():
            if wire in links and port not in links:
                batch.set_link(wire, mac=mac, up=True)
                batch.macvlan(port, links[wire].index)
        kernel.run(batch)

    def follow(self, intent: SwitchIntent) -> None:
        """Admin state and MTU of a port reach its wire, when they change: a fault may hold the wire down meanwhile."""
        batch = Batch()
        for port, wire in self.wire_of.items():
            wanted = intent.ports.get(port)
            before = self._applied.get(port)
            if wanted is None or wanted == before:
                continue
            was_up = port not in self._shut  # a wire comes up with the container
            up = wanted.admin_up if wanted.admin_up != was_up else None
            batch.set_link(wire, up=up, mtu=wanted.mtu)
            self._applied[port] = wanted
            (self._shut.discard if wanted.admin_up else self._shut.add)(port)
        if batch:
            with NetlinkSocket() as kernel:
                kernel.run(batch)
            SHUT.write_text("\n".join(sorted(self._shut)))


def initial_config() -> ConfigDb:
    """What start-up knows itself: the MAC of the management port (init_cfg.json)."""
    mac = Path("/sys/class/net/eth0/address").read_text().strip()
    return {"DEVICE_METADATA": {"localhost": {"hostname": "sonic", "mac": mac, "hwsku": "", "platform": ""}}}


def merge() -> None:
    """Print the configuration to start with."""
    path = SONIC / "config_db.json"
    config = merged(initial_config(), database.read_config_file(path) if path.exists() else {})
    print(json.dumps(config, indent=4))


def load() -> None:
    """Fill CONFIG_DB from the file."""
    database.wait_ready(REDIS)
    database.load_config(REDIS, database.read_config_file(SONIC / "config_db.json"))
    switch = Path("/var/sonic/switch.json")  # swssconfig's input: the hash seeds
    if switch.is_file():
        with database.client(REDIS, DbId.APPL).pipeline(transaction=False) as pipe:
            for key, row in database.switch_table(switch.read_text()).items():
                pipe.hset(key, mapping=row)
            pipe.execute()


def adapt_frr() -> None:
    """From ``frr.conf`` as SONiC takes it to one for this node's FRR."""
    path = SONIC / "config_db.json"
    loopbacks = database.read_config_file(path).get("LOOPBACK_INTERFACE", {}) if path.exists() else {}
    print(lite_frr(sys.stdin.read(), sorted({name.partition("|")[0] for name in loopbacks})), end="")


def _seed() -> int:
    """The hash seed of this switch, where SONiC keeps it."""
    value = database.client(REDIS, DbId.APPL).hget("SWITCH_TABLE:switch", "ecmp_hash_seed")
    return int(value) if value and str(value).isdigit() else 0


def serve() -> None:
    """Ports, then the agent until SIGTERM."""
    READY.unlink(missing_ok=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    write_sysctls(SWITCH_SYSCTLS)
    config = database.read_config_file(SONIC / "config_db.json")
    intent = switch_intent(config)
    ports = Ports(wires(config, lane_map(LANE_MAP.read_text())))
    with NetlinkSocket() as kernel:
        ports.make(intent.mac, kernel)
        links = kernel.links()
        hasten_neighbours(kernel, [links[port].index for port in ports.wire_of if port in links])
        if os.environ.get(QP_HASH) == "1":
            hash_by_qp(kernel, _seed())
    place = Place(socket.gethostname(), True, OWN_NETWORK, REDIS, VTY, len(ports.wire_of))
    run(
        Agent(
            [place],
            name=place.name,
            ready=READY,
            bfd=Path("/run/frr/bfdd.vty").exists() or os.environ.get("FABTEST_BFD") == "1",
            qp_hash=os.environ.get(QP_HASH) == "1",
            ahead=ports.follow,
        )
    )


def main(word: str) -> None:
    """One of the four. Exit code 1 and one line on an error."""
    words = {"merge": merge, "load": load, "run": serve, "frr": adapt_frr}
    if word not in words:
        raise SystemExit("usage: python -m fabtest.litenode.container merge|load|run|frr")
    try:
        words[word]()
    except (FabtestError, OSError) as error:
        stamp = time.strftime("%H:%M:%S")
        print(f"{stamp} {word}: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) == 2 else "")
