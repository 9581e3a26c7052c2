"""config.yaml through `tuner config check`: one line with the place of every mistake."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from cpu_samples import KERNEL
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner.settings import ConfigError, load, validate
from tuner.settings.sections import Settings

ROOT = Path(__file__).parents[2]
CAMPAIGN = """version: 1
campaigns:
  nightly:
    tasks:
      - kernel: softmax
        {task}
    schedule: {{cron: "{cron}", timezone: {zone}}}
"""


def campaign(task: str = "", cron: str = "0 2 * * *", zone: str = "UTC") -> str:
    return CAMPAIGN.format(task=task, cron=cron, zone=zone)


BROKEN = """version: 1
database: {url: "postgresql+psycopg://nobody@127.0.0.1:1/none"}
kernels: [double.py:Doubel]
campaigns:
  c:
    targets: [cpu]
    tasks:
      - {kernel: "double.py:Double", workloads: [{n: 3}]}
      - {kernel: double.py}
      - {kernel: softmax}
      - {kernel: "double.py:Double", workloads: [{m: 3}]}
"""


def test_with_kernels_the_declarations_and_the_database_are_checked(tuner, folder):
    (folder / "double.py").write_text(KERNEL)
    (folder / "config.yaml").write_text(BROKEN)
    assert tuner("config", "check").code == 0
    found = tuner("config", "check", "--kernels")
    problems = [line for line in found.err.splitlines() if line.startswith("error: ")]
    expected = (
        ("kernels[0]", "did you mean 'Double'?"),
        ("campaigns.c.tasks[1]", "did you mean double.py:Double?"),
        ("campaigns.c.tasks[2]", "runs on cuda, hip"),
        ("campaigns.c.tasks[3]", "the workload has no dim 'n'"),
        ("database.url", "connection failed"),
    )
    assert found.code == 2
    for line, (place, words) in zip(problems, expected, strict=True):
        assert line.startswith(f"error: {place}: "), line
        assert words in line
    (folder / "config.yaml").write_text("version: 1\nkernels: [double.py:Double]\n")
    assert tuner("config", "check", "--kernels").code == 0


CUDA_TARGETS = (
    "cuda:70, cuda:75, cuda:80, cuda:86, cuda:87, cuda:89, cuda:90, cuda:100, cuda:103, cuda:110, "
    "cuda:120, cuda:121"
)
CASES = {
    "unknown key": (
        campaign("budgt: {trials: 5}"),
        "config.yaml:6: campaigns.nightly.tasks[0].budgt: unknown key; did you mean 'budget'?",
    ),
    "unknown section": (
        "version: 1\ndatabse: {}\n",
        "config.yaml:2: databse: unknown key; did you mean 'database'?",
    ),
    "wrong type": (
        campaign("budget: {trials: many}"),
        "config.yaml:6: campaigns.nightly.tasks[0].budget.trials: expected integer or 'auto', "
        "found 'many'",
    ),
    "wrong member of a union": (
        campaign("workloads: some"),
        "config.yaml:6: campaigns.nightly.tasks[0].workloads: expected 'all' or list, found 'some'",
    ),
    "list inside a workload": (
        campaign("workloads: [{M: [1]}]"),
        "config.yaml:6: campaigns.nightly.tasks[0].workloads[0].M: expected boolean or integer or "
        "number or text, found [1]",
    ),
    "no workloads": (
        campaign("workloads: []"),
        "config.yaml:6: campaigns.nightly.tasks[0].workloads: empty; write `all` or name one",
    ),
    "unknown choice": (
        "version: 1\nmeasure: {cache: hot}\n",
        "config.yaml:2: measure.cache: expected 'cold', 'warm' or 'rotate', found 'hot'",
    ),
    "out of range": (
        "version: 1\nmeasure: {final_pairs: 2}\n",
        "config.yaml:2: measure.final_pairs: expected greater than or equal to 8, found 2",
    ),
    "duration": (
        campaign("budget: {search: 5 minutes}"),
        "config.yaml:6: campaigns.nightly.tasks[0].budget.search: '5 minutes' is not a duration; "
        "write 90s, 30m, 8h or 1d",
    ),
    "wall time of a budget": (
        campaign("budget: {wall: 5m}"),
        "config.yaml:6: campaigns.nightly.tasks[0].budget.wall: unknown key",
    ),
    "number of runners": (
        "version: 1\npool: {devices: {cpu: {runners: few}}}\n",
        "config.yaml:2: pool.devices.cpu.runners: expected integer or 'auto', found 'few'",
    ),
    "unknown option of a kind": (
        "version: 1\npool: {devices: {simulated: {options: {crush: 0.5}}}}\n",
        "config.yaml:2: pool.devices.simulated.options: unknown option 'crush'; known: crash, "
        "hang, wrong, lost, seed, time_scale",
    ),
    "share above 1": (
        "version: 1\npool: {devices: {simulated: {options: {crash: 2}}}}\n",
        "config.yaml:2: pool.devices.simulated.options: crash: expected a number from 0 to 1, "
        "found 2",
    ),
    "endless duration": (
        campaign("budget: {search: inf}"),
        "config.yaml:6: campaigns.nightly.tasks[0].budget.search: expected less than or equal to "
        "315360000, found 'inf'",
    ),
    "unknown target": (
        campaign("targets: [cpu, cdua]"),
        "config.yaml:6: campaigns.nightly.tasks[0].targets[1]: unknown target 'cdua'; "
        "did you mean 'cuda'?",
    ),
    "unknown capability": (
        campaign("targets: ['cuda:9x']"),
        "config.yaml:6: campaigns.nightly.tasks[0].targets[0]: unknown target 'cuda:9x'; known "
        f"targets: {CUDA_TARGETS}",
    ),
    "unknown pool": (
        "version: 1\npool: {kind: loca}\n",
        "config.yaml:2: pool.kind: unknown pool 'loca'; did you mean 'local'?",
    ),
    "unknown strategy": (
        campaign("strategy: {name: annealing}"),
        "config.yaml:6: campaigns.nightly.tasks[0].strategy.name: unknown strategy 'annealing'; "
        "known: bayes, cmaes, exhaustive, gp, grid, random, tpe",
    ),
    "checkpoints that do not grow": (
        "version: 1\nmeasure: {pairs: [9, 3]}\n",
        "config.yaml:2: measure.pairs: [9, 3] does not grow; write checkpoints such as "
        "[1, 3, 9, 24]",
    ),
    "unknown method": (
        "version: 1\nmeasure: {method: sundial}\n",
        "config.yaml:2: measure.method: expected 'auto', 'events', 'graph' or 'cupti', found "
        "'sundial'",
    ),
    "ratio under one": (
        "version: 1\nmeasure: {cap: 0.5}\n",
        "config.yaml:2: measure.cap: expected greater than 1, found 0.5",
    ),
    "certain to be right": (
        "version: 1\nmeasure: {delta: 0}\n",
        "config.yaml:2: measure.delta: expected greater than 0, found 0",
    ),
    "number that no database holds": (
        campaign("strategy: {seed: 99999999999999999999}"),
        "config.yaml:6: campaigns.nightly.tasks[0].strategy.seed: expected less than or equal to "
        "9223372036854775807, found 99999999999999999999",
    ),
    "number that Python does not read": (
        f"version: 1\nmeasure: {{final_pairs: {'9' * 5000}}}\n",
        "config.yaml:2: a number of 5000 digits",
    ),
    "infinite": (
        "version: 1\nmeasure: {warm_ms: 1e400}\n",
        "config.yaml:2: measure.warm_ms: expected less than or equal to 60000, found inf",
    ),
    "nested too deeply": (
        f"version: 1\nkernels: {'[' * 3000}{']' * 3000}\n",
        "config.yaml: nested too deeply",
    ),
    "aliases that multiply": (
        "version: 1\nkernels:\n - &a0 [x]\n"
        + "".join(f" - &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)),
        "config.yaml: more than 100,000 values",
    ),
    "list that is too long": (
        f"version: 1\nkernels: [{'a,' * 100_000}]\n",
        "config.yaml: more than 100,000 values",
    ),
    "too long": (
        "version: 1\n" + "#" * 2_000_000,
        "config.yaml: 2,000,011 characters; a configuration has at most 2,000,000",
    ),
    "character that YAML does not allow": (
        'version: 1\nkernels: "\0"\n',
        "config.yaml: the character '\\x00' at position 21 is not allowed in YAML",
    ),
    "no tasks": (
        "version: 1\ncampaigns: {n: {tasks: []}}\n",
        "config.yaml:2: campaigns.n.tasks: expected at least 1 item, found []",
    ),
    "missing key": (
        "version: 1\ncampaigns: {n: {tasks: [{}]}}\n",
        "config.yaml:2: campaigns.n.tasks[0].kernel: missing",
    ),
    "campaign name that is a path": (
        "version: 1\ncampaigns: {../n: {tasks: [{kernel: softmax}]}}\n",
        "config.yaml:2: campaigns.../n: a campaign's name is made of letters, digits, `_`, `-` "
        "and `.`",
    ),
    "never fires": (
        campaign(cron="0 0 31 2 *"),
        "config.yaml:7: campaigns.nightly.schedule.cron: '0 0 31 2 *' never fires: no such date "
        "exists",
    ),
    "six fields": (
        campaign(cron="0 0 2 * * *"),
        "config.yaml:7: campaigns.nightly.schedule.cron: '0 0 2 * * *' has 6 fields; a cron line "
        "has five: minute hour day-of-month month day-of-week",
    ),
    "time zone": (
        campaign(zone="Mars/Olympus"),
        "config.yaml:7: campaigns.nightly.schedule.timezone: unknown time zone 'Mars/Olympus'",
    ),
    "no window": (
        campaign().replace("cron:", "blackout: [Fri..Mon, 'Fri 18:00..Mo 06:00'], cron:"),
        "config.yaml:7: campaigns.nightly.schedule.blackout[1]: 'Mo 06:00' is no day, date or "
        "time; write Fri 18:00 or 2026-12-24",
    ),
    "version missing": ("campaigns: {}\n", "config.yaml: version: missing"),
    "version newer": (
        "version: 2\n",
        "config.yaml:1: version: 2 is newer than this tuner, which reads 1",
    ),
    "version is text": ("version: one\n", "config.yaml:1: version: expected 1, found 'one'"),
    "key twice": (
        "version: 1\npool: {}\npool: {}\n",
        "config.yaml:3: key 'pool' is written twice (first on line 2)",
    ),
    "tab": ("version: 1\npool:\n\tkind: ray\n", "config.yaml:3: a tab in the indentation"),
    "a key between two columns": (
        "version: 1\npool:\n    kind: local\n  address: null\n",
        "config.yaml:4: wrong indentation (column 3): begin the line in the column of those that "
        "it belongs to",
    ),
    "a key below a value": (
        "version: 1\n pool: {}\n",
        "config.yaml:2: wrong indentation (column 2): begin the line in the column of those that "
        "it belongs to",
    ),
    "a second colon": (
        "version: 1\ndatabase:\n  url: a: b\n",
        "config.yaml:3: mapping values are not allowed here",
    ),
    "text after a quoted one": (
        'version: 1\ndatabase:\n  url: "a" b\n',
        "config.yaml:3: expected <block end>, but found '<scalar>'",
    ),
    "on as a key": ("version: 1\non: x\n", "config.yaml:2: on: unknown key"),
    "octal": (
        campaign("budget: {trials: 010}"),
        "config.yaml:6: 010 has a leading zero, which is octal in some YAML",
    ),
    "number as a key": ("version: 1\n8: x\n", "config.yaml:2: key 8 is not text"),
    "not a mapping": ("- 1\n", "config.yaml:1: expected a mapping of sections, found a list"),
    "empty": ("# nothing\n", "config.yaml is empty"),
    "open bracket": (
        "version: 1\nkernels: [a\n",
        "config.yaml:3: expected ',' or ']', but got '<stream end>'",
    ),
    "two documents": (
        "version: 1\n---\nversion: 1\n",
        "config.yaml:2: but found another document",
    ),
    "code": (
        "version: 1\nkernels: !!python/object/apply:os.system [ls]\n",
        "config.yaml:2: the tag !!python/object/apply:os.system; a configuration has no tags",
    ),
    "tag of another type": (
        "version: 1\npool:\n  builders: !!int x\n",
        "config.yaml:3: the tag !!int; a configuration has no tags",
    ),
    "tag of a date": (
        "version: 1\npool: {builders: !!timestamp hello}\n",
        "config.yaml:2: the tag !!timestamp; a configuration has no tags",
    ),
    "local tag": (
        "version: 1\npool: !local {builders: 2}\n",
        "config.yaml:2: the tag !local; a configuration has no tags",
    ),
    "strategy that is a number": (
        campaign("strategy: 3"),
        "config.yaml:6: campaigns.nightly.tasks[0].strategy: expected a name or mapping, found 3",
    ),
    "unknown strategy by name alone": (
        campaign("strategy: tep"),
        "config.yaml:6: campaigns.nightly.tasks[0].strategy.name: unknown strategy 'tep'; "
        "did you mean 'tpe'?",
    ),
    "recursive alias": (
        "version: 1\nkernels: &a [*a]\n",
        "config.yaml:2: an alias refers to its own parent",
    ),
    "recursive alias of a mapping": (
        "version: 1\npool: &a\n  kind: *a\n",
        "config.yaml:2: an alias refers to its own parent",
    ),
    "key twice in a merge": (
        "version: 1\nmeasure: {<<: {cache: hot}, rounds: 1}\n",
        "config.yaml:2: measure.cache: expected 'cold', 'warm' or 'rotate', found 'hot'",
    ),
    "control characters": (
        'version: 1\n"\\e[31m[red]x": 1\n',
        "config.yaml:2: \\x1b[31m[red]x: unknown key",
    ),
}


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "-"))
def test_each_mistake_is_one_line_that_names_its_place(tuner, folder, case):
    text, message = CASES[case]
    (folder / "config.yaml").write_text(text)
    result = tuner("config", "check")
    assert (result.code, result.out) == (2, "")
    assert result.error == message
    assert result.hint


def test_a_strategy_may_be_a_name_alone(folder, monkeypatch):
    text = campaign("strategy: tpe").replace("    tasks:", "    strategy: random\n    tasks:")
    (folder / "config.yaml").write_text(text)
    nightly = load(Path("config.yaml"))[0].campaigns["nightly"]
    assert (nightly.strategy.name, nightly.tasks[0].strategy.name) == ("random", "tpe")
    monkeypatch.setenv("TUNER__CAMPAIGNS__NIGHTLY__STRATEGY__SEED", "5")
    nightly = load(Path("config.yaml"))[0].campaigns["nightly"]
    assert (nightly.strategy.name, nightly.strategy.seed) == ("random", 5)
    monkeypatch.setenv("TUNER__CAMPAIGNS__NIGHTLY__STRATEGY", "grid")
    monkeypatch.delenv("TUNER__CAMPAIGNS__NIGHTLY__STRATEGY__SEED")
    assert load(Path("config.yaml"))[0].campaigns["nightly"].strategy.name == "grid"


def test_every_mistake_of_a_file_is_listed(tuner, folder):
    (folder / "config.yaml").write_text(campaign("budget: {trials: x, dervice: 5}"))
    result = tuner("config", "check")
    assert result.code == 2
    assert "budget.trials" in result.err
    assert "did you mean 'device'?" in result.err


def test_a_file_that_is_not_text_or_not_there(tuner, folder):
    (folder / "config.yaml").write_bytes(b"version: 1\n# \xff\xfe")
    assert tuner("config", "check").error == "config.yaml: not UTF-8 text (byte 13)"
    result = tuner("config", "check", "--config", "none.yaml")
    assert (result.code, result.error) == (2, "none.yaml: no such file")
    result = tuner("config", "check", "--config", folder)
    assert (result.code, result.error) == (2, f"{folder} is a folder")


def test_yaml_1_1_traps_read_as_written(folder):
    (folder / "config.yaml").write_text(
        campaign("workloads: [{a: on, b: no, c: 12:30, d: 1e3, e: 0x1f, f: 2026-01-01, g: true}]")
    )
    settings_, _ = load(folder / "config.yaml")
    workloads = settings_.campaigns["nightly"].tasks[0].workloads
    assert workloads == [
        {"a": "on", "b": "no", "c": "12:30", "d": 1000.0, "e": "0x1f", "f": "2026-01-01", "g": True}
    ]


def test_overrides_win_over_environment_over_file_over_defaults(folder, monkeypatch):
    (folder / "config.yaml").write_text(
        "version: 1\npool: {kind: local, builders: 1, devices: {cpu: {runners: 3}}}\n"
    )
    monkeypatch.setenv("TUNER__POOL__BUILDERS", "2")
    monkeypatch.setenv("TUNER__POOL__BUILD_TIMEOUT", "2m")
    monkeypatch.setenv("TUNER__KERNELS", '["a:b"]')
    monkeypatch.setenv("TUNER__MEASURE__CACHE", "cold")
    monkeypatch.setenv("TUNER__POOL__DEVICES__SIMULATED__RUNNERS", "4")
    monkeypatch.setenv("TUNER__POOL__DEVICES__SIMULATED__OPTIONS", '{"time_scale": 0.5}')
    found, base = load(None, {"measure.cache": "warm"})
    assert base == folder
    assert (found.pool.kind, found.pool.builders, found.pool.runners_of("cpu")) == ("local", 2, 3)
    assert found.pool.runners_of("simulated") == 4
    assert found.pool.options_of("simulated") == {"time_scale": 0.5}
    assert found.pool.build_timeout == 120.0
    assert found.pool.measure_timeout == Settings().pool.measure_timeout
    assert found.kernels == ["a:b"]
    assert found.measure.cache == "warm"


def test_every_constant_of_the_protocol_can_be_configured():
    from workers.job_records import MeasurementProtocol

    measure = Settings().measure
    assert measure.make_protocol() == MeasurementProtocol()
    own = {"finalists", "baselines"}
    fixed = {"version", "min_batch_us"}
    constants = {constant.name for constant in fields(MeasurementProtocol)} - fixed
    assert set(type(measure).model_fields) - own == constants
    changed = {"method": "graph", "cache": "rotate", "pairs": [2, 4], "seeds": [7]}
    changed["numerics"] = "deterministic"
    changed |= dict.fromkeys(("cap", "near", "hopeless"), 1.5)
    changed |= dict.fromkeys(("epsilon", "delta", "precision"), 0.25)
    changed |= dict.fromkeys(("rounds", "round_pairs", "final_pairs", "warm_ms"), 9)
    given = type(measure).model_validate(changed).make_protocol()
    assert {name: _listed(getattr(given, name)) for name in constants} == changed


def test_a_baseline_that_no_kernel_has_is_refused_when_the_campaign_starts(tuner, folder):
    text = "version: 1\nmeasure: {{baselines: {names}}}\ncampaigns:\n  c: {{tasks: {tasks}}}\n"
    tasks = "[{kernel: cpu_pointwise, workloads: [{rows: 8, cols: 8, dtype: float32}]}]"
    (folder / "config.yaml").write_text(text.format(names="[eager, compiel]", tasks=tasks))
    result = tuner("run", "c", "--dry-run")
    assert (result.code, result.out) == (2, "")
    assert result.error == (
        "measure.baselines: no kernel of the campaign has a baseline 'compiel'; did you mean "
        "'compile'?"
    )
    assert result.hint == "cpu_pointwise has compile, eager"
    (folder / "config.yaml").write_text(text.format(names="[eager]", tasks=tasks))
    assert tuner("run", "c", "--dry-run").code == 0


def _listed(value):
    return list(value) if isinstance(value, tuple) else value


def test_the_environment_reaches_into_campaigns(folder, monkeypatch):
    (folder / "config.yaml").write_text(campaign("budget: {trials: 5}"))
    monkeypatch.setenv("TUNER__CAMPAIGNS__NIGHTLY__IN_FLIGHT", "9")
    monkeypatch.setenv("TUNER__CAMPAIGNS__NIGHTLY__SCHEDULE__ENABLED", "false")
    found, _ = load(folder / "config.yaml")
    nightly = found.campaigns["nightly"]
    assert nightly.in_flight == 9
    assert nightly.schedule is not None
    assert not nightly.schedule.enabled


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TUNER__POOL__ADRESS", "x", "TUNER__POOL__ADRESS: pool.adress: unknown key; did you mean"),
        ("TUNER__POL__KIND", "x", "TUNER__POL__KIND: unknown section 'pol'; did you mean 'pool'?"),
        ("TUNER__POOL__BUILDERS", "x", "TUNER__POOL__BUILDERS: pool.builders: expected integer"),
        ("TUNER__KERNELS", "a:b", "TUNER__KERNELS: not the JSON that a list or mapping"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(tuner, monkeypatch, name, value, message):
    monkeypatch.setenv(name, value)
    result = tuner("config", "check")
    assert result.code == 2
    assert result.error.startswith(f"environment variable {message}")


def test_relative_places_start_from_the_files_folder(folder, monkeypatch):
    inner = folder / "farm"
    inner.mkdir()
    (inner / "config.yaml").write_text(
        "version: 1\ndatabase: {url: 'sqlite:///r/t.db?timeout=5'}\npaths: {tables: /srv/tables}\n"
    )
    found, base = load(Path("farm/config.yaml"))
    assert base == inner
    assert found.database.url == f"sqlite:///{inner}/r/t.db?timeout=5"
    assert found.paths.results == str(inner / "results")
    assert found.paths.tables == "/srv/tables"
    for url in ("sqlite://", "sqlite:///:memory:", "sqlite:////a.db", "postgresql+psycopg://h/d"):
        (inner / "config.yaml").write_text(f"version: 1\ndatabase: {{url: '{url}'}}\n")
        assert load(inner / "config.yaml")[0].database.url == url


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=60))
def test_no_text_crashes_the_loader(folder, text):
    (folder / "any.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        load(folder / "any.yaml")
    except ConfigError as error:
        assert "\n" not in error.message  # noqa: PT017


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["pool", "kind", "tasks", "campaigns", "x"]), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(sorted(Settings.model_fields)), json_values))
def test_wrong_shapes_are_refused_in_one_line(folder, data):
    (folder / "any.yaml").write_text(yaml.safe_dump({**data, "version": 1}))
    try:
        load(folder / "any.yaml")
    except ConfigError as error:
        assert error.message.startswith("any.yaml")  # noqa: PT017


def test_show_prints_what_loads_again_and_hides_the_password(tuner, folder, monkeypatch):
    (folder / "config.yaml").write_text(campaign("budget: {search: 5m}"))
    shown = tuner("config", "show").out
    (folder / "again.yaml").write_text(shown)
    assert load(folder / "again.yaml")[0] == load(folder / "config.yaml")[0]
    monkeypatch.setenv("TUNER__DATABASE__URL", "postgresql+psycopg://me:s3cret@host/farm")
    result = tuner("config", "show")
    assert "s3cret" not in result.out
    assert "me:***@host/farm" in result.out


def test_a_pool_of_kind_auto_is_ray_where_an_address_names_a_cluster(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert validate({"pool": {"kind": "auto"}}, str).pool.kind == "local"
    assert validate({"pool": {"kind": "auto", "address": "auto"}}, str).pool.kind == "ray"
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert validate({"pool": {"kind": "auto"}}, str).pool.kind == "ray"
    assert validate({"pool": {"kind": "local"}}, str).pool.kind == "local"


@pytest.mark.parametrize(
    ("devices", "runners"),
    [
        ({}, [1, 1, None]),
        ({"cpu": {}, "cuda": {}}, [1, 1, None]),
        ({"cpu": {"runners": None}, "cuda": {"runners": 2}}, [None, 1, 2]),
    ],
)
def test_kinds_have_runners_of_their_own_where_devices_does_not_say(devices, runners):
    pool = Settings.model_validate({"pool": {"devices": devices}}).pool
    assert [pool.runners_of(kind) for kind in ("cpu", "simulated", "cuda")] == runners
