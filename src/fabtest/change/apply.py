"""Making a change live, as an engineer would: rows of CONFIG_DB, and FRR's configuration where it is a file."""

from __future__ import annotations

import json

from fabtest.litenode.database import switch_table
from fabtest.model import Fabric
from fabtest.render.files import switch_files
from fabtest.runtime.base import Lab
from fabtest.sonic.config_db import render_config_db
from fabtest.sonic.db import ConfigDb, DbId, to_redis
from fabtest.sonic.routing_config import RoutingForm, followed, routing_form


def apply_switch(lab: Lab, name: str, after: Fabric) -> int:
    """Bring one switch of a lab to its configuration in ``after``; the number of rows and files that changed.

    The files the switch boots from are replaced too, so that the change outlives a power cycle. Raises ExecError with
    what FRR refuses. Where FRR's configuration comes from must be the same before and after.
    """
    before, then = lab.fabric.switch[name], after.switch[name]
    old, new = render_config_db(lab.fabric, before), render_config_db(after, then)
    form = routing_form(new)
    files, wanted = switch_files(lab.fabric, before), switch_files(after, then)
    changed = [n for n in wanted if files.get(n) != wanted[n]]
    lab.replace_files(name, {file: wanted[file] for file in changed})
    rows = _write_rows(lab, name, old, new)
    if "switch.json" in changed:
        appl = lab.node(name).db(DbId.APPL)
        for key, row in switch_table(wanted["switch.json"].decode()).items():
            appl.hset(key, mapping=row)
            rows += 1
    if "frr.conf" in changed and form is RoutingForm.GIVEN:
        lab.reload_routing(name)
        rows += 1
    elif form is not RoutingForm.GIVEN and followed(old)[1] != followed(new)[1]:
        lab.wait_routing(name, new)
    return rows


def _write_rows(lab: Lab, name: str, old: ConfigDb, new: ConfigDb) -> int:
    """What differs between the two goes into the live CONFIG_DB, as ``config apply-patch`` does."""
    count = 0
    with lab.node(name).db(DbId.CONFIG).pipeline(transaction=False) as pipe:
        for table in sorted({*old, *new}):
            rows, others = old.get(table, {}), new.get(table, {})
            for key in {**rows, **others}:
                before, after = rows.get(key), others.get(key)
                if before == after:
                    continue
                count += 1
                redis_key = f"{table}|{key}"
                if after is None:
                    pipe.delete(redis_key)
                    continue
                fields = to_redis(after)
                gone = to_redis(before).keys() - fields.keys() if before is not None else set()
                pipe.hset(redis_key, mapping=fields)
                if gone:
                    pipe.hdel(redis_key, *gone)
        if count:
            pipe.execute()
    return count


def same_configuration(a: Fabric, b: Fabric, name: str) -> bool:
    """Whether a switch has the same configuration in both."""
    mine, theirs = switch_files(a, a.switch[name]), switch_files(b, b.switch[name])
    if mine == theirs:
        return True
    configs = [render_config_db(f, f.switch[name]) for f in (a, b)]
    return json.dumps(configs[0], sort_keys=True) == json.dumps(configs[1], sort_keys=True) and all(
        mine.get(n) == theirs.get(n) for n in ("frr.conf", "switch.json")
    )
