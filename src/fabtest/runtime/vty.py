"""FRR daemons over their vty sockets, as vtysh talks to them, without starting vtysh.

A command ends with a NUL; the answer ends with three NULs and the return code (lib/vty.c, vtysh/vtysh.c).
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from fabtest.errors import ExecError


def vty(path: Path, command: str, timeout: float = 5.0) -> str:
    """Run one show command in a daemon. Raises ExecError if the daemon is not there or does not answer."""
    data = bytearray()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(timeout)
            client.connect(str(path))
            client.sendall(b"enable\0")
            _answer(client, bytearray())
            client.sendall(command.encode() + b"\0")
            _answer(client, data)
    except OSError as error:
        reason = error.strerror or "no answer"
        raise ExecError(f"{path.stem} does not answer on {path}: {reason}") from None
    return data.decode(errors="replace")


def _answer(client: socket.socket, data: bytearray) -> None:
    while not (len(data) >= 4 and data[-4:-1] == b"\0\0\0"):
        part = client.recv(65536)
        if not part:
            raise OSError(0, "closed")
        data += part
    del data[-4:]


def vty_json(path: Path, command: str, timeout: float = 5.0) -> Any:
    """The same for a ``... json`` command: a mapping or a list; an empty answer is an empty mapping."""
    text = vty(path, command, timeout).strip("\0\r\n ")
    try:
        return json.loads(text) if text else {}
    except ValueError:
        raise ExecError(f"{path.stem}: {command!r} gave no JSON: {text[:80]!r}") from None
