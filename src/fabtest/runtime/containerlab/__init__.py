"""Labs of containers through containerlab: SONiC-VS (or ``fabtest/sonic-lite``) switches, Linux servers.

``tool`` drives the containerlab command and is usable alone; ``engine`` talks to Docker through its SDK; ``node``
reaches into a container from outside; ``lab`` and ``runtime`` implement the contracts of ``fabtest.runtime.base``.
"""

from fabtest.runtime.containerlab.tool import Container, Containerlab

__all__ = ["Container", "Containerlab"]
