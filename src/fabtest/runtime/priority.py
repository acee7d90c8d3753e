"""How much of the processors a process is given beside others."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def set_nice(pid: int, nice: int) -> None:
    """How much a process yields to others: 0 as usual, 19 most. A process or a thread that ended is none.

    All of its threads; and, if it leads a session of its own, that session, which is what counts where the kernel
    shares time between sessions first (autogroup, sched(7)). In somebody else's session, others would move with it.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        leads = os.getsid(pid) == pid
    except OSError:
        return
    for thread in threads:
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, int(thread), nice)
    if leads:
        with suppress(OSError):  # gone meanwhile, or a kernel without autogroup
            Path(f"/proc/{pid}/autogroup").write_text(str(nice))
