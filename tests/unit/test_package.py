"""What is installed is whole: topologies, suites and templates go with the package."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fabtest.images.build import SONIC_LITE, context
from fabtest.topology import shipped_topologies

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def test_wheel_has_what_it_needs(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in shipped_topologies():
        assert f"fabtest/_data/topologies/{name}.yml" in names
    for suite in ("underlay", "ecmp", "qos_config", "failover"):
        assert f"fabtest/_data/suites/test_{suite}.py" in names
    assert "fabtest/sonic/templates/frr.conf.j2" in names
    assert "fabtest/py.typed" in names


def test_it_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """The package unpacked elsewhere, with the environment's dependencies."""
    target = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(target)
    script = (
        "import fabtest, sys; assert fabtest.__file__.startswith(sys.argv[1]), fabtest.__file__;"
        "sys.argv = ['fabtest', 'config-render', 'rail-4x4', '--out', sys.argv[2]];"
        "from fabtest.cli.suites import suites_folder; assert '_data' in str(suites_folder());"
        "from fabtest.cli.program import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(target), str(tmp_path / "out")],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={"PYTHONPATH": str(target), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "leaf1" / "frr.conf").is_file()


def test_the_lite_node_runs_with_what_its_image_holds(tmp_path: Path) -> None:
    """The image has only some of the packages: the agent in it must import no other."""
    folder = tmp_path / "image"
    for name, content, _ in context(SONIC_LITE):
        if name.startswith("fabtest/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    assert not (folder / "fabtest" / "topology").exists()
    script = (
        f"import sys; sys.path = [{str(folder)!r}] + [p for p in sys.path if not p.endswith('src')]\n"
        "import fabtest, fabtest.litenode.agent, fabtest.litenode.container\n"
        f"assert fabtest.__file__.startswith({str(folder)!r}), fabtest.__file__\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
