"""The sysctls (Documentation/networking/ip-sysctl.rst) that make a network namespace forward as a SONiC switch does."""

from __future__ import annotations

from fabtest.sonic.hash import KernelHash

Sysctls = dict[str, "int | str"]
SWITCH_SYSCTLS: Sysctls = {
    "net.ipv4.conf.all.forwarding": 1,
    "net.ipv4.conf.default.forwarding": 1,
    "net.ipv4.conf.all.rp_filter": 0,
    "net.ipv4.conf.default.rp_filter": 0,
    # A next hop whose link lost carrier is skipped at once, as an ASIC does, not when BGP has withdrawn it.
    "net.ipv4.conf.all.ignore_routes_with_linkdown": 1,
    "net.ipv4.conf.default.ignore_routes_with_linkdown": 1,
    "net.ipv4.conf.all.send_redirects": 0,
    "net.ipv4.conf.default.send_redirects": 0,
    "net.ipv4.icmp_ratelimit": 0,
    "net.ipv4.fib_multipath_use_neigh": 1,
    "net.ipv6.conf.all.forwarding": 1,
    "net.ipv6.conf.default.forwarding": 1,
    "net.ipv6.conf.default.accept_dad": 0,
    "net.ipv6.conf.all.keep_addr_on_down": 1,
    "net.ipv6.conf.default.keep_addr_on_down": 1,
    "net.ipv6.conf.all.ignore_routes_with_linkdown": 1,
    "net.ipv6.conf.default.ignore_routes_with_linkdown": 1,
}
#: Seed of the ECMP hash of a network namespace (Linux 6.11).
SEED = "net.ipv4.fib_multipath_hash_seed"


def hash_sysctls(hashing: KernelHash, seed: int | None, *, qp_hash: bool = False) -> Sysctls:
    """ECMP hashing of a switch.

    ``qp_hash``: the policy that takes a packet's hash as it is, where a classifier has put one.
    """
    values: Sysctls = {}
    for family in ("ipv4", "ipv6"):
        if qp_hash:
            values[f"net.{family}.fib_multipath_hash_policy"] = 1
        else:
            values[f"net.{family}.fib_multipath_hash_policy"] = hashing.policy
            values[f"net.{family}.fib_multipath_hash_fields"] = hashing.fields
    if seed is not None:
        values[SEED] = seed
    return values
