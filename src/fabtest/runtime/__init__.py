"""Labs alive on this machine. ``base`` has the contracts; ``netns`` implements them with network namespaces.

The modules below ``netns`` are thin and each own one thing of the machine: ``namespaces`` (entering and naming),
``netlink`` (the kernel's network tables), ``processes`` (daemons and who belongs to a lab), ``state`` (the lab's
folder and lock), ``vty`` (FRR's sockets), ``bpf`` (the one program that drops frames silently).
"""
