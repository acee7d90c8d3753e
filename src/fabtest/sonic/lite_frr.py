"""A switch's ``frr.conf`` for the FRR of a lite node, which is Debian's and has no ASIC behind it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from fabtest.sonic.frr_config import opens, statements

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
    ("vrf ", ()),
    ("no zebra", ("zebra",)),
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
#: Routes that wait for the kernel in zebra, at most; FRR takes up to 10,000. With more than its usual 200, zebra's main
#: thread polls without a pause until its other thread has made room (meta_queue_process, zebra/zebra_rib.c).
DPLANE_LIMIT = 10_000
#: What a lite node's FRR is not told: FPM and SNMP (nobody listens), logging (a lab has its own), kernel next-hop
#: objects, and to wait for an ASIC: with ``suppress-fib-pending`` FRR 8.4 never sends its own networks again to a peer
#: that comes back, once it has heard of them from another.
_UNTOLD = ("agentx", "log ", "fpm ", "no fpm ", "zebra nexthop", "no zebra nexthop", "bgp suppress-fib-pending")


def split_by_daemon(text: str, loopbacks: Iterable[str] = ("Loopback0",)) -> dict[str, str]:
    """``frr.conf`` as per-daemon files, which is what ``vtysh -b`` does with it; here without its run time.

    It is changed as by ``lite_frr``.
    """
    parts: dict[str, list[str]] = {"zebra": [], "bgpd": [], "bfdd": []}
    opened: dict[str, tuple[str, ...]] = dict.fromkeys(parts, ())
    for context, line in statements(lite_frr(text, loopbacks)):
        head = context[0] if context else line
        for owner in next((o for word, o in _OWNERS if head.startswith(word)), ("zebra",)):
            _close(parts[owner], opened[owner], context)
            parts[owner].append(" " * len(context) + line)
            opened[owner] = (*context, line) if opens(line) else context
    for owner, lines in parts.items():
        _close(lines, opened[owner], ())
    return {daemon: "\n".join(lines) + "\n" for daemon, lines in parts.items()}


def _close(lines: list[str], opened: tuple[str, ...], context: tuple[str, ...]) -> None:
    """Leave the stanzas that are open and are not of the next statement."""
    for depth in range(len(opened) - 1, -1, -1):
        if opened[: depth + 1] != context[: depth + 1]:
            word = "exit-address-family" if opened[depth].startswith("address-family ") else "exit"
            lines.append(" " * depth + word)


def lite_frr(text: str, loopbacks: Iterable[str] = ("Loopback0",)) -> str:
    """A configuration as a lite node's FRR takes it: without kernel next-hop objects, and what it has no use for.

    Loopbacks of a lite node are bridges without ports, which have no carrier: zebra must not look for one, or
    ``network`` statements find no route.
    """
    lines = ["no zebra nexthop kernel enable", f"zebra dplane limit {DPLANE_LIMIT}"]
    for name in loopbacks:
        lines += [f"interface {name}", " no link-detect", "exit"]
    for raw in text.splitlines():
        words = raw.split()
        if raw.strip().startswith(_UNTOLD):
            continue
        if len(words) > 1 and words[0] == "maximum-paths" and _more(words[-1]):
            raw = raw.replace(words[-1], str(MOST_PATHS))
        lines.append(raw)
    return "\n".join(lines) + "\n"


def _more(text: str) -> bool:
    """Whether a number is larger than FRR takes."""
    return text.isascii() and text.isdecimal() and (len(text) > 9 or int(text) > MOST_PATHS)


def uses_bfd(text: str) -> bool:
    """Whether a configuration has BFD sessions."""
    return any(" bfd" in line for context, line in statements(text) if context and context[0].startswith("router bgp"))
