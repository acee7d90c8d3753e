"""Optional words on the command line, through invoke's own parser; nothing here needs root."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

FABTEST = str(Path(sys.executable).with_name("fabtest"))
ROOT = Path(__file__).parents[2]


def run(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([FABTEST, *words], capture_output=True, text=True, check=False, cwd=cwd)


def test_list_and_help() -> None:
    assert run("--list").returncode == 0
    text = run("--help", "lab-up").stdout
    assert "lab-up [TOPOLOGY]" in text
    assert "--timeout" in text
    for task in json.loads(run("--list", "--list-format", "json").stdout)["tasks"]:
        done = run("--help", task["name"])
        assert done.returncode == 0, task
        assert "Docstring" in done.stdout
        assert done.stdout.strip() != "none"


@pytest.mark.parametrize(
    "words", [["lab-up"], ["traffic-send"], ["lab-down", "--all"], ["show", "leaf1"], ["lab-test"]]
)
def test_help_after_a_task(words: list[str]) -> None:
    done = run(*words, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: fabtest [--core-opts] {words[0]}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lab-logs", "--folow"], "has no option --folow"),
        (["traffic-send", "gpu1", "gpu2", "--count", "many"], "'many' is not a number"),
        (["traffic-send"], "did not receive required"),
        (["no-such-task"], "No idea what"),
    ],
)
def test_wrong_usage_is_exit_code_2(words: list[str], said: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert said in done.stderr


def test_invoke_in_a_checkout_has_the_same_tasks() -> None:
    invoke = str(Path(sys.executable).with_name("invoke"))
    done = subprocess.run(
        [invoke, "--list", "--list-format", "json"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    mine = json.loads(run("--list", "--list-format", "json").stdout)
    assert {t["name"] for t in json.loads(done.stdout)["tasks"]} == {t["name"] for t in mine["tasks"]}


def test_render_and_diff(tmp_path: Path) -> None:
    done = run("config-render", "clos-2x2", "--out", str(tmp_path / "x"), "--json")
    assert json.loads(done.stdout) == {"folder": str(tmp_path / "x"), "written": 23, "unchanged": 0}
    assert run("config-render", "clos-2x2", "--diff", str(tmp_path / "x")).returncode == 0
    assert run("config-render", "clos-4x2", "--diff", str(tmp_path / "x")).returncode == 1
    assert (
        json.loads(run("config-render", "clos-2x2", "--out", str(tmp_path / "x"), "--json").stdout)["unchanged"] == 23
    )


def test_topologies_and_schema(tmp_path: Path) -> None:
    rows = {row["name"]: row for row in json.loads(run("topologies", "--json").stdout)}
    assert rows["rail-8192"]["gpus"] == 8192
    assert "clos-2x2" in run("topologies").stdout
    assert json.loads(run("topology-schema").stdout)["title"] == "fabtest topology"
    file = tmp_path / "s.json"
    run("topology-schema", "--out", str(file))
    assert file.is_file()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["config-render", "clos-9x9"], 2, "no topology named"),
        (["config-render", "nowhere.yml"], 2, "no such file"),
        (["config-render", "clos-2x2", "--out", "/proc/x/y"], 2, "cannot write"),
        (["lab-graph", "clos-2x2", "--out", "x.gif"], 2, "not a kind of picture"),
    ],
)
def test_errors_are_messages(words: list[str], code: int, said: str, tmp_path: Path) -> None:
    done = run(*words, cwd=tmp_path)
    assert done.returncode == code, done
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_closed_pipe_is_no_traceback() -> None:
    done = subprocess.run(
        ["sh", "-c", '"$0" topology-schema | head -c 1', FABTEST], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr


def test_documents_name_tasks_that_exist() -> None:
    tasks = {t["name"] for t in json.loads(run("--list", "--list-format", "json").stdout)["tasks"]}
    for file in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for word in re.findall(r"\./inv ([a-z][a-z-]+)", file.read_text()):
            assert word in tasks, f"{file.name}: ./inv {word}"
