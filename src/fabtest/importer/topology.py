"""The topology file of an imported fabric. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from fabtest.importer.cables import Cabling, FoundCable, infer_cables
from fabtest.importer.files import GivenSwitch
from fabtest.importer.roles import Roles, find_roles
from fabtest.lint.cabling import CablingRow
from fabtest.lint.run import natural
from fabtest.model import Tier


@dataclass(frozen=True)
class Imported:
    """A folder of configurations understood as a fabric: what was found, and the topology file that says so."""

    name: str
    switches: tuple[GivenSwitch, ...]
    cabling: Cabling
    roles: Roles

    def text(self, configs: str) -> str:
        """The topology file; ``configs`` is how it reaches the folder."""
        return "\n".join([*self._head(configs), *self._nodes(), *self._servers(), *self._links()]) + "\n"

    def _head(self, configs: str) -> list[str]:
        return [
            f"# {self.name}: {len(self.switches)} switches whose configurations are run as they are.",
            "kind: custom",
            f"name: {json.dumps(self.name)}",
            f"configs: {json.dumps(configs)}",
        ]

    def _nodes(self) -> list[str]:
        lines = ["nodes:"]
        for s in sorted(self.switches, key=lambda s: (self.roles.switch[s.name].tier, natural(s.name))):
            role = self.roles.switch[s.name]
            words = [f"name: {json.dumps(s.name)}", f"tier: {role.tier.name.lower()}"]
            words += [
                f"{key}: {value}" for key, value in (("unit", role.unit), ("rail", role.rail)) if value is not None
            ]
            words += [f"plane: {role.plane}"] if role.plane != 1 else []
            words += [f"config: {json.dumps(s.folder)}"] if s.folder != s.name else []
            lines.append(f"  - {{{', '.join(words)}}}")
        return lines

    def _servers(self) -> list[str]:
        if not self.cabling.servers:
            return []
        lines = ["servers:"]
        for name in self.cabling.servers:
            unit = self.roles.unit_of_server.get(name)
            lines.append(f"  - {{name: {json.dumps(name)}{'' if unit is None else f', unit: {unit}'}}}")
        return lines

    def _links(self) -> list[str]:
        lines = ["links:"]
        for c in self.cabling.cables:
            ends = [f"{c.a}:{c.a_port}", f"{c.b}:{c.b_port}"]
            ends.sort(key=lambda end: self._tier(end.partition(":")[0]))
            length = f", length: {c.length_m}" if c.length_m else ""
            lines.append(f'  - {{a: "{ends[0]}", b: "{ends[1]}"{length}}}')
        return lines

    def _tier(self, node: str) -> Tier:
        role = self.roles.switch.get(node)
        return role.tier if role else Tier.SERVER


def understand(name: str, switches: Sequence[GivenSwitch], cabling: Sequence[CablingRow] = ()) -> Imported:
    """Cables and roles of a folder of switches. Nothing is judged here: see the findings in ``cabling``."""
    cables = infer_cables(switches, cabling)
    roles = find_roles(switches, cables)
    place = {frozenset(((row.a, row.a_port), (row.b, row.b_port))): n for n, row in enumerate(cabling)}

    def order(c: FoundCable) -> tuple[object, ...]:
        """As ``cabling.csv`` has them; the others after these, those of servers first."""
        role = roles.switch.get(c.a)
        at = place.get(frozenset(((c.a, c.a_port), (c.b, c.b_port))), len(place))
        return at, role.tier if role else Tier.SERVER, natural(c.a), natural(c.a_port)

    cables.cables.sort(key=order)
    return Imported(name, tuple(switches), cables, roles)
