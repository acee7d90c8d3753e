"""config-lint --yang: SONiC's own models judge, an independent translation agrees, and models of our own for what they lack."""

from __future__ import annotations

import copy
import importlib.util
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabtest.errors import FabtestError, FileProblem, MachineError, UsageError
from fabtest.lint.read import parse_config
from fabtest.lint.rule import Severity
from fabtest.lint.run import YANG, lint_paths
from fabtest.lint.yang import YangModels
from fabtest.lint.yang_models import Node, read_models, statements
from fabtest.lint.yang_translate import translate
from fabtest.render import iter_files, write_tree
from fabtest.topology import load_fabric, shipped_topologies

pytest.importorskip("oopt_gnpy_libyang", reason="libyang for Python is not installed: pip install 'fabtest[yang]'")

Config = dict[str, Any]
RELEASES = ("202511", "202605")

# ------------------------------------------------------------------------------------------ models of our own

PORT = """
module sonic-port {
    yang-version 1.1; namespace "urn:sonic-port"; prefix port;
    import ietf-inet-types { prefix inet; }
    /* a comment with "quotes" and a } */
    container sonic-port {
        container PORT {
            list PORT_LIST {
                key "name";
                leaf name { type string { pattern 'Ethernet[0-9]+'; } }
                leaf lanes { mandatory true; type string; }
                leaf mtu { type uint16 { range "68.." + "9216"; } } // lowest and highest
                leaf-list adv_speeds { type uint32; }
            }
        }
        container PORT_INTERFACE {
            list PORT_INTERFACE_LIST {
                key "name";
                leaf name { type leafref { path "../../../PORT/PORT_LIST/name"; } }
            }
            list PORT_INTERFACE_IPPREFIX_LIST {
                key "name ip-prefix";
                leaf name { type leafref { path "../../PORT_INTERFACE_LIST/name"; } }
                leaf ip-prefix { type inet:ip-prefix; }
            }
        }
    }
}
"""
COMMON = """
module sonic-common {
    yang-version 1.1; namespace "urn:sonic-common"; prefix cmn;
    grouping timed { uses inner; leaf interval { type uint32 { range "100..1000"; } } }
    grouping inner { choice how { case a { leaf fast { type boolean; } } leaf slow { type boolean; } } }
}
"""
TABLES = """
module sonic-tables {
    yang-version 1.1; namespace "urn:sonic-tables"; prefix t;
    import sonic-port { prefix port; }
    import sonic-common { prefix cmn; }
    container sonic-tables {
        container DSCP_TO_TC_MAP {
            list DSCP_TO_TC_MAP_LIST {
                key "name";
                leaf name { type string { pattern "[A-Z]+"; } }
                list DSCP_TO_TC_MAP {
                    key "dscp";
                    leaf dscp { type string { pattern "[0-9]|[1-5][0-9]|6[0-3]" { error-message "Invalid DSCP"; } } }
                    leaf tc { type uint8 { range "0..7"; } }
                }
            }
        }
        container PORT_QOS_MAP {
            list PORT_QOS_MAP_LIST {
                key "ifname";
                leaf ifname {
                    type union { type leafref { path "/port:sonic-port/port:PORT/port:PORT_LIST/port:name"; }
                                 type string { pattern "global"; } }
                }
                leaf dscp_to_tc_map {
                    type leafref { path "/t:sonic-tables/t:DSCP_TO_TC_MAP/t:DSCP_TO_TC_MAP_LIST/t:name"; }
                }
            }
        }
        container FLEX_COUNTER_TABLE {
            container PORT { leaf FLEX_COUNTER_STATUS { type enumeration { enum enable; enum disable; } } }
            container QUEUE { leaf FLEX_COUNTER_STATUS { type enumeration { enum enable; enum disable; } } }
        }
        container WATCH {
            list WATCH_LIST {
                key "name";
                leaf name { type string; }
                uses cmn:timed;
                leaf time {
                    type uint32;
                    must "current() >= ../../WATCH_LIST[name='GLOBAL']/interval" { error-message "too fast"; }
                }
            }
        }
    }
}
"""

GOOD: Config = {
    "PORT": {
        "Ethernet0": {"lanes": "1", "mtu": "9100", "adv_speeds": "100000,200000"},
        "Ethernet4": {"lanes": "2", "adv_speeds": ["100000"]},
    },
    "PORT_INTERFACE": {"Ethernet0": {"NULL": "NULL"}, "Ethernet0|FC00::A/127": {}},
    "DSCP_TO_TC_MAP": {"AZURE": {"26": "3", "0": "0"}},
    "PORT_QOS_MAP": {"Ethernet0": {"dscp_to_tc_map": "AZURE"}, "global": {"dscp_to_tc_map": "AZURE"}},
    "FLEX_COUNTER_TABLE": {"PORT": {"FLEX_COUNTER_STATUS": "enable"}, "QUEUE": {"FLEX_COUNTER_STATUS": "enable"}},
    "WATCH": {"GLOBAL": {"interval": "200", "fast": "true"}, "a": {"time": "200"}},
    "NO_MODEL": {"x": {"y": "z"}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("models")
    for name, text in (("sonic-port", PORT), ("sonic-common", COMMON), ("sonic-tables", TABLES)):
        (found / f"{name}.yang").write_text(text)
    return found


@pytest.fixture(scope="module")
def models(folder: Path) -> YangModels:
    return YangModels(folder)


def test_a_good_configuration_is_clean(models: YangModels) -> None:
    assert models.check(GOOD) == ([], ["NO_MODEL"])
    assert models.check({}) == ([], [])
    assert models.check({"PORT": {}}) == ([], [])


def put(*path: str, value: Any) -> Callable[[Config], None]:
    def change(config: Config) -> None:
        for name in path[:-1]:
            config = config.setdefault(name, {})
        config[path[-1]] = value

    return change


def both(one: Callable[[Config], None], other: Callable[[Config], None]) -> Callable[[Config], None]:
    def change(config: Config) -> None:
        one(config)
        other(config)

    return change


def renamed(table: str, key: str, new: str) -> Callable[[Config], None]:
    return lambda config: put(table, new, value=config[table].pop(key))(config)


#: A change of the good configuration; all that may be told, as (where, words).
FAULTS: dict[str, tuple[Callable[[Config], None], list[tuple[str, str]]]] = {
    "range": (put("PORT", "Ethernet0", "mtu", value="1"), [("PORT|Ethernet0|mtu", "out of the allowed range")]),
    "last field of a row": (
        put("WATCH", "GLOBAL", "fast", value="maybe"), [("WATCH|GLOBAL|fast", 'Invalid boolean value "maybe"')],
    ),
    "element of a text": (
        put("PORT", "Ethernet0", "adv_speeds", value="1,fast"), [("PORT|Ethernet0|adv_speeds", '"fast"')],
    ),
    "element of a list": (
        put("PORT", "Ethernet4", "adv_speeds", value=["x", "1"]), [("PORT|Ethernet4|adv_speeds", '"x"')],
    ),
    "the same twice": (
        put("PORT", "Ethernet4", "adv_speeds", value=["1", "1"]), [("PORT|Ethernet4|adv_speeds", "Duplicate")],
    ),
    "key of a map": (
        put("DSCP_TO_TC_MAP", "AZURE", "64", value="3"), [("DSCP_TO_TC_MAP|AZURE|64", '"64": Invalid DSCP')],
    ),
    "value of a map": (
        put("DSCP_TO_TC_MAP", "AZURE", "1", value="9"), [("DSCP_TO_TC_MAP|AZURE|1", "range")],
    ),
    "map that is a list": (
        put("DSCP_TO_TC_MAP", "AZURE", "1", value=["1", "2"]), [("DSCP_TO_TC_MAP|AZURE|1", '"1,2"')],
    ),
    "unknown field": (put("PORT", "Ethernet0", "mut", value="1"), [("PORT|Ethernet0|mut", "no field mut")]),
    "key as a field": (put("PORT", "Ethernet0", "name", value="x"), [("PORT|Ethernet0|name", "no field name")]),
    "list for a value": (put("PORT", "Ethernet0", "lanes", value=["1"]), [("PORT|Ethernet0|lanes", "is a list")]),
    "mandatory": (put("PORT", "Ethernet8", value={}), [("PORT|Ethernet8", 'Mandatory node "lanes"')]),
    "reference": (
        put("PORT_QOS_MAP", "Ethernet0", "dscp_to_tc_map", value="NOPE"),
        [("PORT_QOS_MAP|Ethernet0|dscp_to_tc_map", 'leafref value "NOPE" - no target instance "DSCP_TO_TC_MAP/')],
    ),
    "reference in a key": (put("PORT_QOS_MAP", "Ethernet8", value={}), [("PORT_QOS_MAP|Ethernet8", '"Ethernet8"')]),
    "key with a part too many": (put("PORT", "Ethernet8|x", value={}), [("PORT|Ethernet8|x", "2 parts")]),
    "no row of the table": (
        put("FLEX_COUNTER_TABLE", "PROT", value={}), [("FLEX_COUNTER_TABLE|PROT", "the model has PORT, QUEUE")],
    ),
    "row of the same name as a table": (
        put("FLEX_COUNTER_TABLE", "PORT", "FLEX_COUNTER_STATUS", value="on"),
        [("FLEX_COUNTER_TABLE|PORT|FLEX_COUNTER_STATUS", '"on"')],
    ),
    "condition": (put("WATCH", "a", "time", value="100"), [("WATCH|a|time", '"100": too fast')]),
    "canonical form in a path": (
        put("PORT_INTERFACE", "Ethernet4|FC00::00C/127", value={}),
        [("PORT_INTERFACE|Ethernet4|FC00::00C/127", '"Ethernet4"')],
    ),
    "not a character": (put("PORT", "Ethernet0", "lanes", value="\x01"), [("PORT|Ethernet0|lanes", "character")]),
    "not a character in a key": (put("PORT", "E\ud800", value={}), [("PORT|E\ud800", "character")]),
    "not a character in a map": (
        put("DSCP_TO_TC_MAP", "AZURE", "1\x00", value="0"), [("DSCP_TO_TC_MAP|AZURE|1\x00", "character")],
    ),
    "quotes": (put("PORT", """E'"0""", value={"lanes": "1"}), [("""PORT|E'"0""", "pattern")]),
    # What only follows from one fault is not told.
    "port of a bad key": (
        both(put("PORT", "Ethernet9|x", value={}), put("PORT_QOS_MAP", "Ethernet9", value={})),
        [("PORT|Ethernet9|x", "2 parts")],
    ),
    "row that has no place": (
        renamed("DSCP_TO_TC_MAP", "AZURE", "AZURE|x"), [("DSCP_TO_TC_MAP|AZURE|x", "2 parts")],
    ),
    "row of an unknown field": (
        put("DSCP_TO_TC_MAP", "AZURE", "zero", value="0"), [("DSCP_TO_TC_MAP|AZURE|zero", "Invalid DSCP")],
    ),
    "condition on a value that is bad": (
        put("WATCH", "GLOBAL", "interval", value="soon"), [("WATCH|GLOBAL|interval", '"soon"')],
    ),
    "two": (
        both(put("PORT", "Ethernet0", "mtu", value="x"), put("PORT_QOS_MAP", "Ethernet9", value={})),
        [("PORT_QOS_MAP|Ethernet9", '"Ethernet9"'), ("PORT|Ethernet0|mtu", '"x"')],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_where_it_is_and_once(name: str, models: YangModels) -> None:
    change, expected = FAULTS[name]
    broken = copy.deepcopy(GOOD)
    change(broken)
    hits = sorted((h.where, h.what) for h in models.check(broken)[0])
    assert [where for where, _ in hits] == [where for where, _ in expected]
    for (_, what), (_, words) in zip(hits, expected, strict=True):
        assert words in what
        assert "\n" not in what
    assert models.check(GOOD)[0] == []


Text = st.text(max_size=6) | st.sampled_from(["Ethernet0", "AZURE", "GLOBAL", "a|b", "'", '"', "]", "1", "x' and 'y"])


@settings(max_examples=300, deadline=None)
@given(
    table=st.sampled_from(sorted(GOOD)),
    rows=st.dictionaries(Text, st.dictionaries(Text, Text | st.lists(Text, max_size=3), max_size=3), max_size=3),
)
def test_any_rows_give_faults_of_that_file(table: str, rows: Config, models: YangModels) -> None:
    """Never an error of ours; every fault stands at something that is in the configuration."""
    config = {**copy.deepcopy(GOOD), table: rows}
    for hit in models.check(config)[0]:
        assert hit.where.partition("|")[0] in config
        assert hit.what
    assert models.check(GOOD)[0] == []


def test_what_the_reader_makes_of_the_models(folder: Path) -> None:
    found = read_models(folder)
    assert found.modules == ("sonic-common", "sonic-port", "sonic-tables")
    assert found.tables["WATCH"].node.lists[0].leaves == {"name", "time", "interval", "fast", "slow"}
    assert found.tables["PORT_INTERFACE"].node.lists[1].keys == ("name", "ip-prefix")
    assert found.tables["PORT"].node.lists[0].leaf_lists == {"adv_speeds"}
    assert [s.argument for s in statements('a "b;" + \'c"\'; // d\n e/f { g /* h */ ; }')] == ['b;c"', ""]
    for text in ('a "b', "a { b;", "a; }", "a"):
        with pytest.raises(ValueError):
            statements(text)


def test_the_json_that_libyang_reads(folder: Path) -> None:
    made = translate(GOOD, read_models(folder))
    data = json.loads(made.text)
    assert data["sonic-port:sonic-port"]["PORT"]["PORT_LIST"][0]["adv_speeds"] == ["100000", "200000"]
    assert data["sonic-tables:sonic-tables"]["DSCP_TO_TC_MAP"]["DSCP_TO_TC_MAP_LIST"][0]["DSCP_TO_TC_MAP"][0] == {
        "dscp": "26", "tc": "3",
    }  # fmt: skip
    assert len(made.lines) == len(made.where)


@pytest.mark.parametrize(
    ("files", "release", "error", "words"),
    [
        ({}, "", FileProblem, "holds no *.yang"),
        ({"a.yang": 'module a { "'}, "", FileProblem, "a.yang as YANG"),
        ({"a.yang": "module a { yang-version 1.1; }"}, "", FileProblem, "cannot load the YANG module a"),
        ({"a.yang": COMMON}, "202511", UsageError, "no folder 202511"),
        ({"1/a.yang": COMMON}, "2", UsageError, "releases there: 1"),
        ({"sonic-port.yang": PORT.replace("ietf-inet-types", "elsewhere")}, "", FileProblem, "elsewhere"),
    ],
)
def test_folders_that_will_not_do(
    files: dict[str, str], release: str, error: type[FabtestError], words: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(error) as caught:
        YangModels(tmp_path, release)
    assert words in str(caught.value)
    assert caught.value.hint or "as YANG" in words
    with pytest.raises(FileProblem):
        YangModels(tmp_path / "none")


def test_the_newest_release_is_used_if_none_is_named(tmp_path: Path) -> None:
    for release in ("202411", "202605", "202511", "202411/samples", "notes"):
        (tmp_path / release).mkdir()
    for release in ("202411", "202605", "202511"):
        (tmp_path / release / "sonic-common.yang").write_text(COMMON)
    assert read_models(tmp_path).folder.name == "202605"
    assert read_models(tmp_path, "202411").folder.name == "202411"


def test_without_libyang(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "oopt_gnpy_libyang", None)
    with pytest.raises(MachineError) as caught:
        YangModels(folder)
    assert "fabtest[yang]" in str(caught.value)


# ------------------------------------------------------------------------------------------------- the command


def run(*words: str) -> tuple[int, str, str]:
    program = str(Path(sys.executable).with_name("fabtest"))
    done = subprocess.run(
        [program, "config-lint", "--severity", "error", *words], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def test_the_command(folder: Path, tmp_path: Path) -> None:
    broken = copy.deepcopy(GOOD)
    broken["FLEX_COUNTER_TABLE"]["PORT"]["FLEX_COUNTER_STATUS"] = "on"
    path = tmp_path / "leaf1.json"
    path.write_text(json.dumps(broken, indent=1))
    code, out, err = run(str(path), "--yang", str(folder))
    assert code == 1
    assert "error YANG: FLEX_COUNTER_TABLE|PORT|FLEX_COUNTER_STATUS Invalid enumeration value" in out
    assert "no YANG model describes NO_MODEL" in err
    assert "reduced" not in err
    found = json.loads(run(str(path), "--yang", str(folder), "--format", "json")[1])
    assert found["schema"] == "yang"
    assert [f["rule"] for f in found["findings"]] == [YANG]
    assert '"on"' in path.read_text().splitlines()[found["findings"][0]["line"] - 1]

    code, out, err = run(str(path))
    assert (code, out) == (0, "")
    assert err.count("reduced form of SONiC's YANG models") == 1
    assert json.loads(run(str(path), "--format", "json")[1])["schema"] == "reduced"
    code, _, err = run(str(path), "--release", "202511")
    assert code == 2
    assert "--yang" in err
    assert run(str(path), "--yang", str(tmp_path))[0] == 2
    assert run("--explain", "yang")[0] == 0


# ---------------------------------------------------------------------------------- SONiC's own models and samples

#: What each faulty sample must be told for, and nothing else.
NEGATIVE = {
    "neg_badref": {"QUEUE|Ethernet0|3|wred_profile"}, "neg_dscp": {"DSCP_TO_TC_MAP|AZURE|64"},
    "neg_ecn": {"WRED_PROFILE|AZURE_LOSSLESS|ecn"}, "neg_field": {"BUFFER_PROFILE|egress_lossless_profile|sizes"},
    "neg_len": {"CABLE_LENGTH|AZURE|Ethernet0"}, "neg_minmax": {"WRED_PROFILE|AZURE_LOSSLESS|green_max_threshold"},
    "neg_multi": {"WRED_PROFILE|AZURE_LOSSLESS|ecn", "PFC_WD|Ethernet0|detection_time", "QUEUE|Ethernet0|3|wred_profile"},
    "neg_pfcen": {"PORT_QOS_MAP|Ethernet0|pfc_enable"}, "neg_poll": {"PFC_WD|Ethernet0|detection_time"},
    "neg_port": {"BUFFER_PG|Ethernet8|3-4"},
}  # fmt: skip


@pytest.fixture(scope="module", params=RELEASES)
def sonic(request: pytest.FixtureRequest, shared: Path) -> YangModels:
    return YangModels(shared / "data" / "sonic-yang", request.param)


def yang_of(path: Path, models: YangModels) -> set[str]:
    found = [f for f in lint_paths([path], yang=models).findings if f.rule == YANG]
    assert all(f.severity is Severity.ERROR for f in found)
    return {f.where for f in found}


def test_every_sample_has_the_verdict_it_must_have(sonic: YangModels, shared: Path) -> None:
    samples = sorted((shared / "data" / "sonic-yang" / "samples").glob("*.json"))
    assert {p.stem for p in samples} > NEGATIVE.keys()
    for path in samples:
        assert yang_of(path, sonic) == NEGATIVE.get(path.stem, set()), path.name


def test_the_reader_finds_what_the_index_of_the_reference_has(sonic: YangModels, shared: Path) -> None:
    """Another reader of the same models, written apart from this one, has the same tables, keys and fields."""
    folder = sonic.models.folder
    index = json.loads((folder.parent / f"index_{folder.name}.json").read_text())

    def theirs(node: Config) -> Any:
        kinds = {name: leaf["kind"] for name, leaf in node.get("leaves", {}).items()}
        return (
            {n for n, k in kinds.items() if k == "leaf"},
            {n for n, k in kinds.items() if k == "leaf-list"},
            [(inner["name"], tuple(inner["keys"]), theirs(inner)) for inner in node.get("lists", [])],
            {name: theirs(inner) for name, inner in node.get("containers", {}).items()},
        )

    def ours(node: Node) -> Any:
        inner = [(n.name, n.keys, ours(n)) for n in node.lists]
        return set(node.leaves), set(node.leaf_lists), inner, {k: ours(n) for k, n in node.containers.items()}

    tables = sonic.models.tables
    assert {t: (m.module, ours(m.node)) for t, m in tables.items()} == {
        t: (node["module"], theirs(node)) for t, node in index.items()
    }


def test_public_configurations_have_the_verdict_of_the_independent_judge(sonic: YangModels, shared: Path) -> None:
    judge = shared / "tools" / "configdb_yang_oracle.py"
    compared = 0
    for path in sorted((shared / "data" / "config_db").glob("*.json")):
        try:
            config = parse_config(path, path.read_bytes()).config
        except FileProblem:  # a flattened dump: no config_db.json to either, and told as such
            continue
        done = subprocess.run(
            [sys.executable, str(judge), sonic.models.folder.name, str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (0, 1), done.stderr
        assert bool(sonic.check(config)[0]) == bool(done.returncode), path.name
        compared += 1
    assert compared >= 5


def mutated(config: Config, random_: random.Random) -> Config:
    """One change of one row somewhere."""
    changed = copy.deepcopy(config)
    table = random_.choice([t for t, rows in changed.items() if rows])
    key = random_.choice(list(changed[table]))
    row = changed[table][key]
    field = random_.choice(list(row)) if row else ""
    match random_.randrange(5):
        case 0:
            del changed[table][key]
        case 1:
            changed[table][f"z!{key}"] = changed[table].pop(key)
        case 2 if field:
            row[field] = "bogus"
        case 3 if field:
            del row[field]
        case _:
            row["bogus"] = "1"
    return changed


def test_sonics_own_sample_of_every_table_is_clean_and_faults_in_it_are_judged_alike(
    sonic: YangModels, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the reference stays as it is
    folder = sonic.models.folder
    sample = json.loads((folder.parent / "samples" / f"sample_config_db_{folder.name}.json").read_text())
    tables = sample["SAMPLE_CONFIG_DB_JSON"]
    config = parse_config(Path("f.json"), json.dumps(tables).encode()).config
    assert len(config) > 190
    assert sonic.check(config) == ([], [])

    spec = importlib.util.spec_from_file_location("judge", shared / "tools" / "configdb_yang_oracle.py")
    assert spec is not None
    assert spec.loader is not None
    judge = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(judge)
    index = json.loads((folder.parent / f"index_{folder.name}.json").read_text())
    random_ = random.Random(folder.name)
    verdicts = []
    for _ in range(25):
        changed = mutated(config, random_)
        data, _, faults = judge.xlate(copy.deepcopy(changed), index)
        faults += judge.v_oopt(str(folder), data, index)
        assert bool(sonic.check(changed)[0]) == bool(faults), faults
        verdicts.append(bool(faults))
    assert len(set(verdicts)) == 2


def test_rendered_switches_are_valid(sonic: YangModels, tmp_path: Path) -> None:
    for name in ("rail-4x4", "clos-4x2"):
        if name in shipped_topologies():
            write_tree(iter_files(load_fabric(shipped_topologies()[name])), tmp_path / name)
            report = lint_paths([tmp_path / name], yang=sonic)
            assert (report.findings, report.schema) == ((), "yang")
