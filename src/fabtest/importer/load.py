"""A fabric from what a user named: a topology file, a shipped topology, or a folder of configurations."""

from __future__ import annotations

from pathlib import Path

from fabtest.errors import ConfigError
from fabtest.importer.files import node_name, read_given
from fabtest.importer.topology import understand
from fabtest.lint.cabling import read_cabling
from fabtest.model import Fabric
from fabtest.topology import load_fabric_text, topology_path
from fabtest.topology.load import read_topology


def fabric_of(word: str) -> tuple[Fabric, str]:
    """The fabric and the text of its topology; that of a folder is made on the way.

    Raises FileProblem, TopologyError, and ConfigError where a folder does not tell all cables.
    """
    path = Path(word)
    if not path.is_dir():
        path = topology_path(word)
        source = read_topology(path)
        return load_fabric_text(source, str(path), default_name=path.stem), source
    name = node_name(path.resolve().name) or "fabric"
    found = understand(name, read_given(path), read_cabling(path))
    if found.cabling.missing or not found.cabling.cables:
        reasons = found.cabling.missing or ["nothing tells of a cable"]
        raise ConfigError(
            f"{word}: the fabric is not whole:\n" + "\n".join(f"  {text}" for text in reasons),
            hint="`fabric-import --partial` makes a topology of what is there; a cabling.csv beside the files helps",
        )
    source = found.text(str(path.resolve()))
    return load_fabric_text(source, f"{word}.yml", default_name=name), source
