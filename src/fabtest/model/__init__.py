"""The fabric as a value: what is wired to what, with which addresses and which intent.

Everything here is frozen, does no input or output and knows nothing of YAML, SONiC files or the machine.
``Fabric`` is made by ``fabtest.topology`` and read by everything after it.
"""

from fabtest.model.fabric import (
    BgpIntent,
    BgpSession,
    Emulation,
    Endpoint,
    Fabric,
    FailoverBounds,
    HashIntent,
    Link,
    Nic,
    NicPort,
    Port,
    Server,
    Shape,
    Switch,
    SwitchBgp,
    SwitchKind,
    Tier,
    Vlan,
)
from fabtest.model.qos import EcnCurve, QosIntent, Watchdog

__all__ = [
    "BgpIntent",
    "BgpSession",
    "EcnCurve",
    "Emulation",
    "Endpoint",
    "Fabric",
    "FailoverBounds",
    "HashIntent",
    "Link",
    "Nic",
    "NicPort",
    "Port",
    "QosIntent",
    "Server",
    "Shape",
    "Switch",
    "SwitchBgp",
    "SwitchKind",
    "Tier",
    "Vlan",
    "Watchdog",
]
