"""Bringing a running FRR to another configuration without restarting it, by FRR's own frr-reload."""

from __future__ import annotations

import subprocess
from pathlib import Path

from fabtest.errors import ExecError, MachineError

PROGRAM = Path("/usr/lib/frr/frr-reload.py")


def reload_frr(vty: Path, file: Path, timeout: float = 120.0) -> None:
    """Make the daemons whose sockets are in ``vty`` run ``file`` (in the folder of a ``vtysh.conf``).

    Raises MachineError without the program, ExecError with what FRR refused.
    """
    if not PROGRAM.is_file():
        raise MachineError(f"{PROGRAM} is not there", hint="install the Debian package frr-pythontools")
    argv = [
        str(PROGRAM), "--reload", "--stdout", "--log-level", "error", "--bindir", "/usr/bin", "--confdir",
        str(file.parent), "--rundir", str(vty), "--vty_socket", str(vty), str(file),
    ]  # fmt: skip
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise ExecError(f"frr-reload has not ended within {timeout:g} s") from None
    if done.returncode:
        words = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise ExecError(f"FRR did not take its new configuration: {' / '.join(words[-3:])}")
