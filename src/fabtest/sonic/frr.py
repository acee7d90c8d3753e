"""``frr.conf``: eBGP after RFC 7938, loadable by FRR 8.4 and 10.

Only loopbacks and server prefixes are advertised. ``no zebra nexthop kernel enable`` keeps FRR 8.4 from losing a path
of a kernel next-hop group after a link flap (FRR issue 14481).
"""

from __future__ import annotations

from functools import cache

import jinja2

from fabtest.model import BgpSession, Fabric, Switch


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
            peers=_peers,
            planes=len(fabric.planes),
            coalesce_ms=coalesce_ms(switch),
            # Those would refuse what this switch learned from their like: it is not sent to begin with.
            above={s.peer for s in switch.sessions if fabric.switch[s.peer].tier > switch.tier},
            families=[(family, "ip" if family == 4 else "ipv6") for family in fabric.families],
            pools=fabric.advertised,
            originated=(*(loop.network for loop in switch.loopbacks), *switch.server_prefixes),
        )
    )


def _peers(session: BgpSession, family: int | None = None) -> list[str]:
    """How frr.conf names the far end of a session: its port if unnumbered, else its addresses (of a family)."""
    if session.unnumbered:
        return [session.port]
    return [str(remote.ip) for remote in session.remote if family in (None, remote.version)]


def coalesce_ms(switch: Switch) -> int:
    """How long bgpd collects routes before it first sends them to a peer that came up, in ms.

    FRR starts at a second and goes up to ten as peers come up (bgpd/bgp_fsm.c): most of the time a small fabric takes
    to converge. It should be about as long as the switch's sessions take to come up, so that each peer gets all routes
    in one batch.
    """
    return max(100, 10 * len(switch.sessions))
