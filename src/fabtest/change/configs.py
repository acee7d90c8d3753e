"""The configurations of a fabric, wherever they are: a folder, a topology, a running lab."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fabtest.errors import UsageError
from fabtest.importer.files import CONFIG, from_files, read_given
from fabtest.lint.read import ConfigFile, parse_config
from fabtest.model import Fabric
from fabtest.render.files import switch_files
from fabtest.runtime.base import Lab
from fabtest.sonic.db import ConfigDb, DbId, from_redis


@dataclass(frozen=True)
class Configs:
    """Files of every switch, by node name; ``source`` says where they are from."""

    source: str
    files: dict[str, dict[str, bytes]]

    def config(self, switch: str) -> ConfigDb:
        """CONFIG_DB of a switch. Raises FileProblem."""
        return self.parsed(switch).config

    def parsed(self, switch: str) -> ConfigFile:
        """The same, as the linter takes it."""
        return parse_config(Path(self.source) / switch / CONFIG, self.files[switch][CONFIG])

    def frr(self, switch: str) -> str:
        """What FRR runs."""
        return from_files(switch, self.files[switch]).routing.text


def configs_of(word: str) -> Configs:
    """Of what a user named: a folder of configurations, a topology (file or shipped), or the name of a running lab.

    Raises FileProblem, ConfigError, TopologyError, LabError.
    """
    from fabtest.topology import load_fabric, topology_path

    path = Path(word)
    if path.is_dir():
        return Configs(word, {s.name: s.files for s in read_given(path)})
    if path.is_file() and path.suffix == ".json":
        raise UsageError(f"{word} is a file", hint="name the folder it is in")
    if not path.is_file():
        from fabtest.runtime.labs import all_labs, runtime_of

        if word in {lab.name for lab in all_labs()}:
            return live_configs(runtime_of(word).attach(word))
    return of_fabric(load_fabric(topology_path(word)), word)


def of_fabric(fabric: Fabric, source: str) -> Configs:
    """Rendered, or given."""
    return Configs(source, {s.name: switch_files(fabric, s) for s in fabric.switches})


def live_configs(lab: Lab) -> Configs:
    """CONFIG_DB of every switch as it is now, beside the ``frr.conf`` it was started with."""
    found = {}
    for switch in lab.fabric.switches:
        connection = lab.node(switch.name).db(DbId.CONFIG)
        config: ConfigDb = {}
        for key in sorted(connection.scan_iter("*|*", count=1000)):
            table, _, rest = key.partition("|")
            config.setdefault(table, {})[rest] = from_redis(connection.hgetall(key))
        files = dict(switch_files(lab.fabric, switch))
        files[CONFIG] = json.dumps(config).encode()
        found[switch.name] = files
    return Configs(f"lab {lab.name}", found)


def changed_fabric(before: Fabric, word: str) -> tuple[Fabric, str]:
    """The fabric ``before`` with the configurations of a folder, of a topology of the same cables, or of a lab; and
    the text of a topology that says so.

    Raises UsageError where switches or cables differ.
    """
    from fabtest.topology import load_fabric, topology_path
    from fabtest.topology.load import read_topology

    if not Path(word).is_dir() and (Path(word).is_file() or word in _shipped()):
        path = topology_path(word)
        after, text = load_fabric(path), read_topology(path)
        if {(link.a, link.b) for link in after.links} != {(link.a, link.b) for link in before.links}:
            raise UsageError(
                f"{word} has other cables", hint="a change of configurations is tested, not one of the fabric's cables"
            )
        return after, text
    return with_configs(before, configs_of(word), word), wiring_text(before)


def _shipped() -> set[str]:
    from fabtest.topology import shipped_topologies

    return set(shipped_topologies())


def with_configs(fabric: Fabric, configs: Configs, source: str) -> Fabric:
    """The same cables with other configurations, whose switches must be the same.

    Raises UsageError where they are not, TopologyError where a cable's port has gone.
    """
    from fabtest.importer import given_fabric
    from fabtest.topology.load import parse_custom

    if set(configs.files) != set(fabric.switch):
        lost = sorted(set(fabric.switch) - set(configs.files))
        more = sorted(set(configs.files) - set(fabric.switch))
        what = [f"no {n}" for n in lost] + [f"{n} is new" for n in more]
        raise UsageError(
            f"{configs.source} has other switches: {', '.join(what)}",
            hint="a change of configurations is tested, not one of the fabric's cables",
        )
    spec, parsed = parse_custom(wiring_text(fabric), source)
    given = {name: from_files(name, files) for name, files in configs.files.items()}
    changed, problems = given_fabric(spec, parsed, given, fabric.name)
    if changed is None:
        from fabtest.errors import TopologyError

        raise TopologyError(source, problems)
    return changed


def wiring_text(fabric: Fabric) -> str:
    """Nodes and cables of any fabric as a ``custom`` topology with given configurations."""
    nodes = [
        {"name": s.name, "tier": s.tier.name.lower(), "plane": s.plane}
        | ({} if s.unit is None else {"unit": s.unit})
        | ({} if s.rail is None else {"rail": s.rail})
        for s in fabric.switches
    ]
    servers = [
        {"name": s.name, "gpus_per_nic": s.nics[0].gpus if s.nics else 1} | ({} if s.unit is None else {"unit": s.unit})
        for s in fabric.servers
    ]
    links = [{"a": str(link.a), "b": str(link.b), "length": link.length_m} for link in fabric.links]
    emulation = {
        "runtime": fabric.emulation.runtime, "qp_hash": fabric.emulation.qp_hash,
        "sonic_image": fabric.emulation.sonic_image, "server_image": fabric.emulation.server_image,
    }  # fmt: skip
    failover = {"carrier_loss": fabric.failover.carrier_ms, "silent_loss": fabric.failover.silent_extra_ms}
    return json.dumps(
        {
            "kind": "custom", "name": fabric.name, "configs": "configs", "nodes": nodes, "servers": servers,
            "links": links, "emulation": emulation, "failover": failover,
        }
    )  # fmt: skip
