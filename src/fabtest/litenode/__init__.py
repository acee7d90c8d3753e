"""The lite SONiC node: a network namespace that behaves like a SONiC switch as far as databases and routes show.

It holds interfaces named ``Ethernet<n>``, a redis-server with SONiC's databases, FRR, and no ASIC. One agent per lab
(``python -m fabtest.litenode LAB``) does what portmgrd, intfmgrd, vlanmgrd, portsyncd, neighsyncd, fpmsyncd, lldpd
and the port counters do: ``intent`` reads CONFIG_DB, ``kernel`` brings the kernel in line with it, ``publish`` writes
APPL_DB, STATE_DB and COUNTERS_DB with SONiC's keys, ``lldp`` speaks LLDP on the wires, ``agent`` ties them to events.

Not emulated: queues, PFC, ECN and buffers (configuration only), ASIC_DB, ACLs, port channels, tagged VLAN members
on kernels without 802.1Q. ``docs/lab.md`` has the list.
"""
