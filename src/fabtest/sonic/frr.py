"""``frr.conf``: eBGP after RFC 7938, loadable by FRR 8.4 and 10.

Only loopbacks and server prefixes are advertised. ``no zebra nexthop kernel enable`` keeps FRR 8.4 from losing a path
of a kernel next-hop group after a link flap (FRR issue 14481).
"""

from __future__ import annotations

from functools import cache

import jinja2

from fabtest.model import Fabric, Switch
from fabtest.sonic.frr_config import opens, statements


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("fabtest.sonic"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render_frr(fabric: Fabric, switch: Switch) -> str:
    """The configuration of every routing daemon of a switch, in one file (``split-unified``)."""
    return (
        _environment()
        .get_template("frr.conf.j2")
        .render(
            switch=switch,
            bgp=fabric.bgp,
            unnumbered=fabric.unnumbered,
            planes=len(fabric.planes),
            coalesce_ms=coalesce_ms(switch),
            # Those would refuse what this switch learned from their like: it is not sent to begin with.
            above={s.peer for s in switch.sessions if fabric.switch[s.peer].tier > switch.tier},
            families=[(family, "ip" if family == 4 else "ipv6") for family in fabric.families],
            pools=fabric.advertised,
            originated=(*(loop.network for loop in switch.loopbacks), *switch.server_prefixes),
        )
    )


def coalesce_ms(switch: Switch) -> int:
    """How long bgpd collects routes before it first sends them to a peer that came up, in ms.

    FRR starts at a second and goes up to ten as peers come up (bgpd/bgp_fsm.c): most of the time a small fabric takes
    to converge. It should be about as long as the switch's sessions take to come up, so that each peer gets all routes
    in one batch: with a hundred peers that is seconds.
    """
    sessions = len(switch.sessions)
    return max(100, (15 if sessions <= 64 else 40) * sessions)


#: Which daemons read a top-level statement of frr.conf, by its first words; None: none that runs on a lite node.
_OWNERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("router bgp", ("bgpd",)),
    ("bgp ", ("bgpd",)),
    ("debug bgp", ("bgpd",)),
    ("bfd", ("bfdd",)),
    ("router ", ()),
    ("ip route ", ()),
    ("ipv6 route ", ()),
    ("segment-routing", ()),
    ("key chain", ()),
    ("agentx", ()),
    ("log ", ()),
    ("fpm ", ()),
    ("no fpm ", ()),
    ("zebra nexthop", ()),
    ("vrf ", ()),
    ("frr ", ("zebra", "bgpd", "bfdd")),
    ("hostname", ("zebra", "bgpd", "bfdd")),
    ("service ", ("zebra", "bgpd", "bfdd")),
    ("password", ("zebra", "bgpd", "bfdd")),
    ("ip prefix-list", ("bgpd", "zebra")),
    ("ipv6 prefix-list", ("bgpd", "zebra")),
    ("route-map", ("bgpd", "zebra")),
    ("access-list", ("bgpd", "zebra")),
    ("ip community-list", ("bgpd",)),
)
#: What Debian's FRR was built with (``--enable-multipath``); SONiC's own takes more.
MOST_PATHS = 256


def split_by_daemon(text: str) -> dict[str, str]:
    """``frr.conf`` as per-daemon files, which is what ``vtysh -b`` does with it; here without its run time.

    What a lite node's FRR cannot take is left out or bounded (FPM, logging, the width of ``maximum-paths``), and zebra
    is always told to do without kernel next-hop objects.
    """
    parts: dict[str, list[str]] = {"zebra": [], "bgpd": [], "bfdd": []}
    opened: dict[str, tuple[str, ...]] = dict.fromkeys(parts, ())
    for context, line in statements(text):
        head = context[0] if context else line
        for owner in next((o for word, o in _OWNERS if head.startswith(word)), ("zebra",)):
            _close(parts[owner], opened[owner], context)
            parts[owner].append(" " * len(context) + bounded(line))
            opened[owner] = (*context, line) if opens(line) else context
    for owner, lines in parts.items():
        _close(lines, opened[owner], ())
    parts["zebra"].append("no zebra nexthop kernel enable")
    return {daemon: "\n".join(lines) + "\n" for daemon, lines in parts.items()}


def _close(lines: list[str], opened: tuple[str, ...], context: tuple[str, ...]) -> None:
    """Leave the stanzas that are open and are not of the next statement."""
    for depth in range(len(opened) - 1, -1, -1):
        if opened[: depth + 1] != context[: depth + 1]:
            word = "exit-address-family" if opened[depth].startswith("address-family ") else "exit"
            lines.append(" " * depth + word)


def bounded(line: str) -> str:
    """A statement with no larger number than FRR takes."""
    words = line.split()
    if words[0] == "maximum-paths" and words[-1].isdigit() and int(words[-1]) > MOST_PATHS:
        return " ".join([*words[:-1], str(MOST_PATHS)])
    return line


def uses_bfd(text: str) -> bool:
    """Whether a configuration has BFD sessions."""
    return any(" bfd" in line for context, line in statements(text) if context and context[0].startswith("router bgp"))
