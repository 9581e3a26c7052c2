"""FlagGems: the products of a model, and the database of configs that it keeps on a machine.

The facts are those of FlagGems 5.0.2 (Apache-2.0): `utils/libentry.py` (LibCache, LibTuner),
`utils/models/sql.py` (SQLPersistantModel), `utils/code_cache.py`, `ops/mm.py`. The database is
SQLite: one table of configs per kernel, `{function}_{hash}-{md5}`, whose columns are `key_0`,
`key_1`, ... and the config. The hash is over the kernel's code and its list of configs. Sizes are
rounded up to multiples of 32. `tune_configs.yaml` of the package lists the configs that FlagGems
tries by operation; it has no sizes.

FlagGems launches by a class of its own, which `tuner.apply` does not reach. So its own tuning fills
this database, and what is here reads it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tuner import TunerError, Value
from tuner.integrations import products_of, quantization_of

from library_adapters.captured_library import CapturedLibrary, OwnConfig
from library_adapters.layers import (
    Layer,
    LayerLaunch,
    dtype_of,
    random_input,
)

_STEP = 32
_KERNEL = "mm_kernel_general"
#: The arguments that `key_0`, `key_1`, ... of a function hold.
_KEYS = {
    _KERNEL: ("M", "N", "K", "stride_am", "stride_bk"),
    f"{_KERNEL}_host_tma": ("M", "N", "K", "stride_am", "stride_bk"),
}
_TABLE = re.compile(r"(?P<function>\w+)_[0-9a-f]{32}-[0-9a-f]{32}")
_FILE = re.compile(r"TunedConfig_(?P<device>.+)_triton_(?P<triton>\d+_\d+)\.db")


class FlagGems(CapturedLibrary):
    """Products of 16-bit or float32 weights under `flag_gems.enable()`."""

    name = "flag_gems"
    distribution, version, module = "flag_gems", "5.0.2", "flag_gems"
    remedy = (
        "run the model once with flag_gems.enable() on this device: FlagGems tunes at the first "
        "launch and keeps the configs in its database"
    )

    def layers(self, model: Mapping[str, Any], tensor_parallel: int = 1) -> list[Layer]:
        found = quantization_of(model)
        if found is None or found.dtype:
            return []
        dtype = dtype_of(model)
        return [
            _product(one.layer, one.cols, one.depth, dtype)
            for one in products_of(model, tensor_parallel)
        ]

    def looked_up(self, tokens: int) -> int:
        return _align(tokens)

    def own_configs(
        self, package: Path | None, device: str, environment: Mapping[str, str]
    ) -> Iterator[OwnConfig]:
        for path in _databases(environment):
            named = _FILE.fullmatch(path.name)
            if named is None or named["device"] == device.replace(" ", "_"):
                triton = named["triton"].replace("_", ".") if named else ""
                for function, key in database_keys(path):
                    yield OwnConfig(path, function, triton, key)


def _product(layer: str, cols: int, depth: int, dtype: str) -> Layer:
    def run(tokens: int, device: str) -> None:
        import flag_gems

        a, b = (random_input(sizes, dtype, device) for sizes in ((tokens, depth), (cols, depth)))
        flag_gems.mm(a.detach(), b.detach().t())

    key: dict[str, Value] = {"N": _align(cols), "K": _align(depth)}
    launch = LayerLaunch(f"flag_gems.ops.mm:{_KERNEL}", key, ("M", 1))
    return Layer(layer, (launch,), run)


def _align(size: int) -> int:
    """FlagGems' strategy `align32`."""
    return -(-size // _STEP) * _STEP


def _databases(environment: Mapping[str, str]) -> list[Path]:
    """The database of the variable, else those of the cache folder."""
    if url := environment.get("FLAGGEMS_DB_URL"):
        kind, _, path = url.partition(":///")
        if kind != "sqlite":
            raise TunerError(
                f"FLAGGEMS_DB_URL is no SQLite file: {url!r}", "name one as sqlite:///PATH"
            )
        return [Path(path)] if Path(path).is_file() else []
    root = environment.get("FLAGGEMS_CACHE_DIR") or f"{Path.home()}/.flaggems"
    return sorted((Path(root) / "config_cache").glob("TunedConfig_*.db"))


def database_keys(path: Path) -> Iterator[tuple[str, dict[str, Value]]]:
    """The functions with tuned configs of a database, and the keys of each; it is only read.

    Raises TunerError for a file that is no database of SQLite.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            for (name,) in sorted(names.fetchall()):
                if (found := _TABLE.fullmatch(name)) is None:
                    continue
                rows = database.execute(f'SELECT * FROM "{name}"')
                columns = [column[0] for column in rows.description]
                for row in rows.fetchall():
                    yield found["function"], _key(found["function"], columns, row)
    except sqlite3.Error as error:
        raise TunerError(
            f"{path}: no database of FlagGems ({error})", "delete it; FlagGems makes it again"
        ) from None


def _key(function: str, columns: list[str], row: tuple[Value, ...]) -> dict[str, Value]:
    names = dict(enumerate(_KEYS.get(function, ())))
    found: dict[str, Value] = {}
    for column, value in zip(columns, row, strict=True):
        if column.startswith("key_"):
            found[names.get(int(column.removeprefix("key_")), column)] = value
    return found
