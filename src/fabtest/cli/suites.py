"""lab-test (suites against a running lab) and test (fabtest's own tests)."""

from __future__ import annotations

import json as jsonlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from invoke.exceptions import Exit

from fabtest.checks.suites import SUITES
from fabtest.cli.common import JSON, LAB, err, fabtest_task, out, print_json, the_lab
from fabtest.errors import FileProblem, LabError, UsageError


def suites_folder() -> Path:
    """Where the suites' test files are: of the checkout, or of the installed package."""
    here = Path(__file__).parents[1]
    for folder in (here.parents[1] / "tests" / "fabric", here / "_data" / "suites"):
        if folder.is_dir():
            return folder
    raise FileProblem("the suites are not installed", hint="reinstall fabtest")


@fabtest_task(
    rest="suite",
    help={
        "suite": f"any of {', '.join(SUITES)}; default: all",
        "lab": LAB,
        "junit": "write JUnit XML to this file",
        "html": "write a page with the verdicts and the picture of the fabric",
        "json": JSON,
    },
)
def lab_test(
    c: Any, suite: list[str] | None = None, lab: str = "", junit: str = "", html: str = "", json: bool = False
) -> None:
    """Prove a running lab: lab-test [SUITE...].

    Exit code 0: all passed; 1: something failed; 3: nothing failed, something was inconclusive.
    """
    chosen = list(suite or SUITES)
    for name in chosen:
        if name not in SUITES:
            raise UsageError(f"no suite {name!r}", hint=f"suites: {', '.join(SUITES)}")
    for file in filter(None, (junit, html)):
        if not Path(file).absolute().parent.is_dir():
            raise FileProblem(f"cannot write {file}: no such folder")
    live = the_lab(lab)
    folder = suites_folder()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fabtest-") as scratch:
        report = Path(scratch) / "verdicts.json"
        argv = [
            sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rs", "--no-header", "--tb=short",
            "-o", "addopts=",
            "-o", "filterwarnings=", f"--rootdir={folder}", "-c", "/dev/null", f"--fabtest-lab={live.name}",
            f"--fabtest-report={report}",
            *([f"--junitxml={Path(junit).absolute()}"] if junit else []),
            *[str(folder / f"test_{name.replace('-', '_')}.py") for name in chosen],
        ]  # fmt: skip
        code = subprocess.run(argv, check=False, stdout=sys.stderr if json else None).returncode
        verdicts = jsonlib.loads(report.read_text())["verdicts"] if report.is_file() else []
    seconds = round(time.monotonic() - start, 1)
    inconclusive = [v for v in verdicts if v["outcome"] == "inconclusive"]
    if code not in (0, 1):
        raise LabError(f"the suites could not be run (pytest ended with {code})")
    result = 1 if code else 3 if inconclusive else 0
    if json:
        print_json({"lab": live.name, "suites": chosen, "ok": result == 0, "seconds": seconds, "verdicts": verdicts})
    elif not code:
        passed = sum(v["outcome"] == "pass" for v in verdicts)
        note = f", {len(inconclusive)} inconclusive" if inconclusive else ""
        out.print(f"lab {live.name}: {passed} checks passed{note} in {seconds} s")
    if html:
        _write_html(live, chosen, verdicts, seconds, html)
    if result:
        raise Exit(code=result)


def _write_html(live: Any, suites: list[str], verdicts: list[dict[str, Any]], seconds: float, file: str) -> None:
    from fabtest.checks.status import lab_status
    from fabtest.report.graph import LiveState
    from fabtest.report.page import verdict_page

    status = lab_status(live)
    state = LiveState(
        {n.name: n.state for n in status.nodes}, {str(h.link): h.why for h in status.link_health if not h.up}
    )
    page = verdict_page(live.fabric, live.name, suites, verdicts, seconds, state)
    try:
        Path(file).write_text(page)
    except OSError as error:
        raise FileProblem(f"cannot write {file}: {error.strerror}") from None
    err.print(f"{file} written")


@fabtest_task(
    rest="arguments",
    help={
        "arguments": "folders, files or pytest's own arguments (after --)",
        "quick": "unit tests only: no labs, no root",
    },
)
def test(c: Any, arguments: list[str] | None = None, quick: bool = False) -> None:
    """fabtest's own tests, labs and all: test [-- PYTEST ARGUMENTS]. Needs a checkout."""
    from fabtest.cli.words import remainder

    root = Path(__file__).parents[3]
    if not (root / "tests" / "unit").is_dir():
        raise UsageError(
            "the tests come with a checkout, not with the installed package", hint="git clone, then ./inv test"
        )
    folders = ["tests/unit"] if quick else ["tests/unit", "tests/lab", "tests/containers"]
    given = [*(arguments or []), *remainder()]
    named = any((root / word.partition("::")[0]).exists() for word in given)
    chosen = given if named else [*folders, *given]
    code = subprocess.run([sys.executable, "-m", "pytest", *chosen], cwd=root, check=False).returncode
    if code:
        raise Exit(code=1 if code == 1 else 2)
