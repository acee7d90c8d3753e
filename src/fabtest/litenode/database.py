"""A switch's redis-server: SONiC's databases on a unix socket."""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import redis

from fabtest.errors import ConfigError, LabError
from fabtest.sonic.db import ConfigDb, DbId, from_redis, to_redis


def redis_argv(program: str, folder: Path) -> list[str]:
    """The command line of a node's server: unix socket only, nothing on disk, SONiC's notifications."""
    return [
        program, "--port", "0", "--unixsocket", str(folder / "redis.sock"), "--unixsocketperm", "700",
        "--databases", "20", "--save", "", "--appendonly", "no", "--notify-keyspace-events", "AKE",
        "--daemonize", "no", "--loglevel", "warning", "--dir", str(folder), "--timeout", "0",
        "--activerehashing", "no", "--hz", "5", "--jemalloc-bg-thread", "no",
    ]  # fmt: skip


#: Set in CONFIG_DB once it is filled (sonic-swss-common's CFG_DB_INIT flag).
INITIALIZED = "CONFIG_DB_INITIALIZED"


@cache
def _pool(path: str, number: int) -> redis.ConnectionPool:
    return redis.ConnectionPool(
        connection_class=redis.UnixDomainSocketConnection, path=path, db=number, decode_responses=True,
        socket_timeout=5,
    )  # fmt: skip


def client(folder: Path, db: DbId) -> Any:
    """A redis.Redis of one database of a node, answers decoded; connections are shared within the process."""
    return redis.Redis(connection_pool=_pool(str(folder / "redis.sock"), db.number))


def wait_ready(folder: Path, timeout: float = 20.0) -> None:
    """Until the server answers. Raises LabError."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            client(folder, DbId.CONFIG).ping()
            return
        except (redis.RedisError, OSError):
            if time.monotonic() > deadline:
                log = folder / "redis.log"
                tail = log.read_text(errors="replace")[-300:] if log.is_file() else ""
                raise LabError(f"redis-server of {folder.name} does not answer", hint=tail or str(log)) from None
            time.sleep(0.02)


def read_config_file(path: Path) -> ConfigDb:
    """``config_db.json`` of a node. Raises ConfigError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: the top level must be an object of tables")
    for table, rows in data.items():
        if not isinstance(rows, dict):
            raise ConfigError(f"{path}: {table} must be an object of rows")
        for key, row in rows.items():
            if not isinstance(row, dict) or not all(
                isinstance(v, str | bool | int | float) or (isinstance(v, list) and all(isinstance(x, str) for x in v))
                for v in row.values()
            ):
                raise ConfigError(f"{path}: {table}|{key} must be an object of texts and lists of texts")
    return {
        table: {
            key: {field: v if isinstance(v, str | list) else json.dumps(v) for field, v in row.items()}
            for key, row in rows.items()
        }
        for table, rows in data.items()
    }


def switch_table(text: str) -> dict[str, dict[str, str]]:
    """SWITCH_TABLE rows of a ``switch.json``: an object, or the list of operations swssconfig takes."""
    data = json.loads(text)
    groups = data if isinstance(data, list) else [data]
    return {
        key: {str(field): str(value) for field, value in row.items()}
        for group in groups
        if isinstance(group, dict)
        for key, row in group.items()
        if key.startswith("SWITCH_TABLE") and isinstance(row, dict)
    }


def load_config(folder: Path, config: ConfigDb) -> None:
    """Fill an empty CONFIG_DB, and APPL_DB's SWITCH_TABLE from ``switch.json``, as SONiC's start-up does."""
    with client(folder, DbId.CONFIG).pipeline(transaction=False) as pipe:
        for table, rows in config.items():
            for key, row in rows.items():
                pipe.hset(f"{table}|{key}", mapping=to_redis(row))
        pipe.execute()
    path = folder / "switch.json"
    if path.is_file():
        with client(folder, DbId.APPL).pipeline(transaction=False) as pipe:
            for key, seeds in switch_table(path.read_text()).items():
                pipe.hset(key, mapping=seeds)
            pipe.execute()
    client(folder, DbId.CONFIG).set(INITIALIZED, "1")


def read_config(connection: Any, tables: tuple[str, ...]) -> ConfigDb:
    """Tables of a live CONFIG_DB."""
    prefixes = tuple(f"{t}|" for t in tables)
    keys = [k for k in connection.keys("*") if k.startswith(prefixes)]
    with connection.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.hgetall(key)
        rows = pipe.execute()
    config: ConfigDb = {table: {} for table in tables}
    for key, row in zip(keys, rows, strict=True):
        table, _, rest = key.partition("|")
        config[table][rest] = from_redis(row)
    return config
