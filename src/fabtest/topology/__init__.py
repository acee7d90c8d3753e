"""From a topology file to a ``model.Fabric``.

``source`` reads YAML and remembers where each value stands; ``schema`` says what may be written;
``shapes`` wires switches and servers (one small generator per kind); ``ports`` gives cables their SONiC ports;
``addressing`` and ``asn`` number them; ``load`` runs these in order and reports every fault at once;
``routing`` works out which routes and next hops the fabric should have.
"""

from fabtest.topology.load import load_fabric, load_fabric_text, shipped_topologies, topology_path

__all__ = ["load_fabric", "load_fabric_text", "shipped_topologies", "topology_path"]
