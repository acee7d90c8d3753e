"""FRR follows CONFIG_DB, where SONiC makes FRR's configuration of it: the part of bgpcfgd and frrcfgd."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fabtest.errors import FabtestError
from fabtest.litenode.database import client, read_config
from fabtest.runtime.reload import reload_frr
from fabtest.sonic.db import ConfigDb, DbId
from fabtest.sonic.lite_frr import lite_frr
from fabtest.sonic.routing_config import APPLIED, REFUSED, ROUTING_TABLES, RoutingForm, followed, routing_form

log = logging.getLogger("fabtest.agent")


class RoutingFollower:
    """Configurations that are on their way to FRR, one after another: frr-reload takes a second or two."""

    def __init__(self) -> None:
        self._wanted: dict[str, str] = {}
        self._reloads = ThreadPoolExecutor(1)

    def follow(self, name: str, folder: Path, vty: Path, config: ConfigDb) -> None:
        """Bring a switch's FRR to what CONFIG_DB says now, if that has changed. ``config`` has DEVICE_METADATA;
        ``folder`` is that of its Redis, ``vty`` that of its daemons' sockets."""
        if routing_form(config) is RoutingForm.GIVEN:
            return
        tables = read_config(client(folder, DbId.CONFIG), ROUTING_TABLES)
        text, digest = followed(tables)
        mark = folder / APPLIED
        if not mark.is_file():  # as it was started
            mark.write_text(digest)
            self._wanted[name] = digest
        if digest != self._wanted.setdefault(name, mark.read_text()):
            self._wanted[name] = digest
            loopbacks = sorted({key.partition("|")[0] for key in tables["LOOPBACK_INTERFACE"]})
            self._reloads.submit(self._reload, name, folder, vty, lite_frr(text, loopbacks), digest)

    def close(self) -> None:
        """What has not begun is left to the next agent."""
        self._reloads.shutdown(wait=False, cancel_futures=True)

    def _reload(self, name: str, folder: Path, vty: Path, text: str, digest: str) -> None:
        try:
            file = folder / "frr.new.conf"
            file.write_text(text)
            (folder / "vtysh.conf").write_text("service integrated-vtysh-config\n")
            reload_frr(vty, file)
            (folder / REFUSED).unlink(missing_ok=True)
            (folder / APPLIED).write_text(digest)
            log.info("%s: FRR brought in line with CONFIG_DB", name)
        except (FabtestError, OSError, ValueError) as error:
            log.warning("%s: %s", name, error)
            (folder / REFUSED).write_text(f"{digest}\n{error}\n")
