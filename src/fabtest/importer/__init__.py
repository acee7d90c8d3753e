"""Fabrics from configurations that exist: a folder of ``config_db.json`` (and ``frr.conf``) files as a topology.

``files`` reads a folder, ``cables`` infers what is plugged where, ``roles`` what each switch is, ``topology`` writes a
``custom`` topology file that names the folder, and ``fabric`` makes the model of such a file: the original files are
carried along and run as they are. ``limits`` lists what a lab cannot honour.
"""

from fabtest.importer.fabric import given_fabric
from fabtest.importer.files import GivenSwitch, read_given, read_switch

__all__ = ["GivenSwitch", "given_fabric", "read_given", "read_switch"]
