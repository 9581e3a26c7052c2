"""Validated settings from the command line, the environment, config.yaml and defaults."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from search_spaces.errors import TunerError
from search_spaces.near_names import did_you_mean
from tuner.settings.error_messages import SCHEMA_HINT, Where, format_path, translate
from tuner.settings.sections import (
    BESIDE_CHECK,
    CampaignConfig,
    ConfigError,
    Settings,
    TaskConfig,
)
from tuner.settings.yaml_file import Document, KeyPath, read

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_settings import BaseSettings

CONFIG_NAME = "config.yaml"
_PREFIX = "TUNER__"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
#: Mappings with a short form, and the key whose value the short form is.
_SHORT = {"strategy": "name", "budget": "trials"}


def load(
    path: Path | None = None, overrides: Mapping[str, object] | None = None
) -> tuple[Settings, Path]:
    """The settings and the folder that their relative paths start from.

    path: the file; None means `config.yaml` in the current folder, or the defaults without one.
    overrides: dotted paths (`database.url`) to values that precede environment and file. The
    database's URL and the result folders are returned as absolute paths. Raises `ConfigError`.
    """
    file = Path(CONFIG_NAME) if path is None else path
    document = read(file) if path is not None or file.exists() else Document(file, {}, {})
    if document.data and "version" not in document.data:
        raise ConfigError(f"{file.name}: version: missing", "write `version: 1` as its first line")
    environment = _environment()
    command_line = _nest(overrides or {})

    def where(at: KeyPath) -> str:
        if _holds(command_line, at):
            return "command line"
        if _holds(environment, at):
            return f"environment variable {_PREFIX}{'__'.join(map(str, at)).upper()}"
        return document.where(at)

    settings = validate(_merge(_merge(document.data, environment), command_line), where)
    base = file.resolve().parent
    return anchor(settings, base), base


def validate(data: Mapping[str, Any], where: Where) -> Settings:
    """Settings from plain data; a `ConfigError` names the place of a key as `where` gives it."""
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        raise translate(error, data, where) from None
    problems = [f"{where(at)}: {format_path(at)}: {text}" for at, text in _contradictions(settings)]
    if problems:
        failure = ConfigError(problems[0], SCHEMA_HINT)
        failure.problems = tuple(problems)
        raise failure
    return settings


def _environment() -> dict[str, Any]:
    """The settings in environment variables, by section."""
    known = sorted(Settings.model_fields)
    variables = [variable for variable in sorted(os.environ) if variable.startswith(_PREFIX)]
    for variable in variables:
        section = variable.removeprefix(_PREFIX).split("__")[0].lower()
        if section not in known:
            raise ConfigError(
                f"environment variable {variable}: unknown section "
                f"{section!r}{did_you_mean(section, known)}",
                f"sections: {', '.join(known)}",
            )
    return _parsed_environment() if variables else {}


def _parsed_environment() -> dict[str, Any]:
    from pydantic_settings import EnvSettingsSource, SettingsError

    class _Environment(EnvSettingsSource):
        """Environment variables; a mapping may have its short form instead of JSON."""

        def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
            try:
                return super().decode_complex_value(field_name, field, value)
            except ValueError:
                if field_name.lower() in _SHORT:
                    return value
                raise

    source = _Environment(
        cast("type[BaseSettings]", Settings), env_prefix=_PREFIX, env_nested_delimiter="__"
    )
    try:
        return source()
    except SettingsError as error:
        found = re.search(r'field "(\w+)"', str(error))
        raise ConfigError(
            f"environment variable {_PREFIX}{found.group(1).upper() if found else '...'}: "
            "not the JSON that a list or mapping is written as",
            f"for example {_PREFIX}KERNELS='[\"package.module:kernel\"]'",
        ) from None


def _nest(overrides: Mapping[str, object]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for path, value in overrides.items():
        at = result
        *parents, last = path.split(".")
        for part in parents:
            at = at.setdefault(part, {})
        at[last] = value
    return result


def _merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """`low` overridden by `high`, key by key in mappings; lists are replaced as a whole."""
    result = dict(low)
    for key, value in high.items():
        old = result.get(key)
        if key in _SHORT and isinstance(old, str):
            old = {_SHORT[key]: old}
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = _merge(old, value)
        result[key] = value
    return result


def _holds(data: object, path: KeyPath) -> bool:
    for part in path:
        if not isinstance(data, Mapping) or part not in data:
            return False
        data = data[part]
    return bool(path)


def _contradictions(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """Problems beyond single fields: unknown names, targets, schedules that never fire."""
    from tuner import strategies
    from workers import backend_kinds, pools

    kind = settings.pool.kind
    yield from _unknown(("pool", "kind"), "pool", kind, pools.names())
    for kind, device in settings.pool.devices.items():
        yield from _unknown(("pool", "devices", kind), "backend", kind, backend_kinds.names())
        if kind in backend_kinds.names():
            problem = backend_kinds.spec(kind).find_option_problem(device.options)
            if problem:
                yield ("pool", "devices", kind, "options"), problem
    for name, campaign in settings.campaigns.items():
        at: KeyPath = ("campaigns", name)
        if not _NAME.fullmatch(name):
            yield at, "a campaign's name is made of letters, digits, `_`, `-` and `.`"
        yield from _check_problems(at, campaign)
        yield from _target_problems((*at, "targets"), campaign.targets)
        named = (*at, "strategy", "name")
        yield from _unknown(named, "strategy", campaign.strategy.name, strategies.names())
        for index, task in enumerate(campaign.tasks):
            yield from _target_problems((*at, "tasks", index, "targets"), task.targets)
            if task.strategy is not None:
                named = (*at, "tasks", index, "strategy", "name")
                yield from _unknown(named, "strategy", task.strategy.name, strategies.names())
            yield from _source_problems((*at, "tasks", index), task)
            if task.workloads == []:
                yield (*at, "tasks", index, "workloads"), "empty; write `all` or name one"
        if (plan := campaign.schedule) is not None:
            yield from _cron_problems((*at, "schedule"), "cron", plan.cron, plan.timezone)
    if (notify := settings.notify).morning is not None:
        yield from _cron_problems(("notify",), "morning", notify.morning, notify.timezone)


def _check_problems(at: KeyPath, campaign: CampaignConfig) -> Iterator[tuple[KeyPath, str]]:
    """A campaign has tasks, or a check and then nothing of what tasks need."""
    if campaign.check is not None:
        for key in sorted(campaign.model_fields_set - BESIDE_CHECK):
            yield (*at, key), "leave it out beside `check`"
    elif not campaign.tasks:
        yield (*at, "tasks"), "missing"


def _cron_problems(
    at: KeyPath, name: str, cron: str, timezone: str
) -> Iterator[tuple[KeyPath, str]]:
    """name: the key of the line."""
    from tuner.schedule.due import ScheduleError, check

    try:
        check(cron, timezone)
    except ScheduleError as error:
        yield (*at, name if error.key == "cron" else error.key), error.message


def _source_problems(at: KeyPath, task: TaskConfig) -> Iterator[tuple[KeyPath, str]]:
    """A task has a kernel, or calls of a model and then nothing of a kernel's own."""
    if not task.from_model:
        if not task.kernel:
            yield (*at, "kernel"), "missing"
    elif task.kernel or task.workloads != "all" or task.ranges or task.space:
        yield (*at, "from_model"), "leave out `kernel`, `workloads`, `ranges` and `space`"


def _unknown(
    at: KeyPath, what: str, name: str, known: Sequence[str]
) -> Iterator[tuple[KeyPath, str]]:
    if name not in known:
        hint = did_you_mean(name, known) or f"; known: {', '.join(known)}"
        yield at, f"unknown {what} {name!r}{hint}"


def _target_problems(at: KeyPath, targets: list[str] | None) -> Iterator[tuple[KeyPath, str]]:
    from workers import backend_kinds

    if targets == []:
        yield at, "empty; name at least one target, such as `cpu` or `cuda:90`"
    for index, target in enumerate(targets or ()):
        kind = target.partition(":")[0]
        try:
            if kind not in backend_kinds.names() or not backend_kinds.spec(kind).timed:
                near = did_you_mean(kind, backend_kinds.target_kinds())
                yield (*at, index), f"unknown target {target!r}{near}"
            elif target != kind:
                backend_kinds.spec(kind).check_target(target)
        except TunerError as error:
            yield (*at, index), f"{error.message}; {error.hint}"


def anchor(settings: Settings, base: Path) -> Settings:
    """The settings with absolute paths of the database, the result folders and the log file.

    Relative paths start from `base`; absolute ones stay as they are.
    """
    base = base.absolute()
    database = settings.database.model_copy(
        update={"url": _anchored_url(settings.database.url, base)}
    )
    paths = settings.paths.model_copy(
        update={
            name: str(base / _expand(value, f"paths.{name}"))
            for name, value in settings.paths.model_dump().items()
        }
    )
    log = settings.logging
    if log.file is not None:
        log = log.model_copy(update={"file": str(base / _expand(log.file, "logging.file"))})
    return settings.model_copy(update={"database": database, "paths": paths, "logging": log})


def _expand(path: str, key: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"{key}: {path}: no such home folder", "write the whole path") from None


def _anchored_url(url: str, base: Path) -> str:
    scheme, separator, rest = url.partition(":///")
    file, mark, query = rest.partition("?")
    relative = file and not file.startswith(("/", ":memory:", "file:"))
    if not scheme.startswith("sqlite") or not separator or not relative:
        return url
    return f"{scheme}:///{base / file}{mark}{query}"
