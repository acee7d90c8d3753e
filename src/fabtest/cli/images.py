"""images: the container images of `--runtime containerlab`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fabtest.cli.common import JSON, err, fabtest_task, print_json, print_table
from fabtest.errors import UsageError


@fabtest_task(
    help={
        "sonic-vs": "load a docker-sonic-vs as SONiC publishes it (docs/sonic-vs.md) from this file, and tag it "
        "fabtest/sonic-vs",
        "base": "where Debian comes from: registry (debian:bookworm-slim), packages (mmdebstrap), or auto",
        "force": "build also what is there already",
        "json": JSON,
    },
)
def images(c: Any, sonic_vs: str = "", base: str = "auto", force: bool = False, json: bool = False) -> None:
    """Build the container images of a lab: fabtest/sonic-lite and fabtest/host. What is there is not built again."""
    from rich.status import Status

    from fabtest.images.build import RECIPES, build, load_sonic_vs
    from fabtest.runtime.containerlab.engine import Engine

    if base not in ("auto", "registry", "packages"):
        raise UsageError(f"--base {base}: it is auto, registry or packages")
    engine = Engine()
    engine.version()
    built = []
    with Status("", console=err) as status:

        def say(what: str) -> None:
            if err.is_terminal:
                status.update(what)
            else:
                err.print(what)

        if sonic_vs:
            built.append(load_sonic_vs(engine, Path(sonic_vs), say=say))
        else:
            for recipe in RECIPES:
                built.append(build(engine, recipe, base=base, force=force, say=say))
    if json:
        print_json([{"image": b.name, "id": b.id, "content": b.content, "built": b.fresh} for b in built])
        return
    rows = [[b.name, b.id.removeprefix("sha256:")[:12], b.content[:12], "built" if b.fresh else "there"] for b in built]
    print_table(["IMAGE", "ID", "CONTENT", "STATE"], rows)
