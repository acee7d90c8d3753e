"""How much of the processors a process is given beside others."""

from __future__ import annotations

import os


def set_nice(pid: int, nice: int) -> None:
    """How much a process yields to others: 0 as usual, 19 most. All of its threads, and its session, which is what
    counts where the kernel shares time between sessions first (autogroup, sched(7)). A process that ended is none."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(thread), nice)
        with open(f"/proc/{pid}/autogroup", "w") as group:
            group.write(str(nice))
    except OSError:
        pass  # gone meanwhile, or a kernel without autogroup
