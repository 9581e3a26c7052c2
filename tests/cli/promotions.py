"""Promotions into the folder `published`, as tests of `tuner promote` make them."""

from __future__ import annotations

import json

from tuner.runtime import read


def promote(tuner, run: object, *arguments: object) -> list[dict]:
    result = tuner("promote", run, "--to", "published", "--format", "json", *arguments)
    assert result.code == 0, result.err
    return json.loads(result.out)


def only_table(folder):
    (path,) = (folder / "published").glob("*@*.json")
    return read(path)
