"""Reduce schemas to what the samples in `examples/` use: `reduce_schema.py CRD DASHBOARD NOTE`.

KUBERAY/helm-chart/kuberay-operator/crds/ray.io_raycronjobs.yaml, of a release, and
GRAFANA_FOUNDATION_SDK/jsonschema/dashboard.jsonschema.json are its arguments, then the text that
names both versions. A reduced object has the properties that a sample uses and those that are
required, and no others, unless the source lets it have any. Writes `sample_schemas.json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).parents[2] / "examples"
#: What is copied; descriptions and the rest only lengthen a schema.
_KEPT = (
    "type", "enum", "const", "pattern", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "required", "minLength",
)  # fmt: skip


def reduce_schema(
    schema: Mapping[str, Any], samples: Sequence[Any], definitions: Mapping[str, Any]
) -> dict[str, Any]:
    """The part of a schema that concerns the samples. definitions: those that it refers to."""
    if "$ref" in schema:
        return reduce_schema(definitions[schema["$ref"].rpartition("/")[2]], samples, definitions)
    if alternatives := schema.get("oneOf"):
        return {"oneOf": [reduce_schema(each, samples, definitions) for each in alternatives]}
    reduced = {key: schema[key] for key in _KEPT if key in schema}
    if schema.get("x-kubernetes-int-or-string"):
        reduced["type"] = ["integer", "string"]
    if "items" in schema:
        inside = [item for sample in samples if isinstance(sample, list) for item in sample]
        reduced["items"] = reduce_schema(schema["items"], inside, definitions)
    if schema.get("type") == "object":
        reduced |= _reduce_object(schema, samples, definitions)
    return reduced


def _reduce_object(
    schema: Mapping[str, Any], samples: Sequence[Any], definitions: Mapping[str, Any]
) -> dict[str, Any]:
    objects = [sample for sample in samples if isinstance(sample, dict)]
    known = schema.get("properties", {})
    wanted = {key for each in objects for key in each} | {*schema.get("required", ())}
    properties = {
        key: reduce_schema(known[key], [o[key] for o in objects if key in o], definitions)
        for key in sorted(wanted & known.keys())
    }
    others = schema.get("additionalProperties", False)
    if isinstance(others, dict) and others:
        values = [o[key] for o in objects for key in o.keys() - known.keys()]
        others = reduce_schema(others, values, definitions)
    free = not known and "additionalProperties" not in schema
    if free or schema.get("x-kubernetes-preserve-unknown-fields"):
        others = True  # such as `metadata`
    return {"properties": properties, "additionalProperties": others}


def main() -> None:
    crd, dashboard, note = sys.argv[1:]
    (version,) = yaml.safe_load(Path(crd).read_text())["spec"]["versions"]
    definitions = json.loads(Path(dashboard).read_text())["definitions"]
    ray = version["schema"]["openAPIV3Schema"]
    ray["properties"] = {**ray["properties"], "metadata": METADATA}
    night, tick = (load(f"{name}.yaml") for name in ("raycronjob", "cronjob-rayjob"))
    cluster = ray["properties"]["spec"]["properties"]["jobTemplate"]["properties"]["rayClusterSpec"]
    pod = cluster["properties"]["headGroupSpec"]["properties"]["template"]
    template = tick["spec"]["jobTemplate"]["spec"]["template"]
    found = {
        "$comment": note,
        "RayCronJob": reduce_schema(ray, [night], {}),
        "CronJob": make_cronjob(reduce_schema(pod, [template], {})),
        "dashboard": reduce_schema(
            definitions["Dashboard"],
            [json.loads((EXAMPLES / "monitoring" / "grafana.json").read_text())],
            definitions,
        ),
    }
    Path(__file__).with_name("sample_schemas.json").write_text(json.dumps(found, sort_keys=True))


def load(name: str) -> Any:
    return yaml.safe_load((EXAMPLES / "schedules" / name).read_text())


def make_cronjob(pod: dict[str, Any]) -> dict[str, Any]:
    """The schema of a CronJob of batch/v1 (Kubernetes 1.32) with all fields of its own and those of
    a job that have no parts. pod: that of its pod's template."""
    text, count, flag = ({"type": name} for name in ("string", "integer", "boolean"))
    counts = "activeDeadlineSeconds backoffLimit completions parallelism ttlSecondsAfterFinished"
    job = {**dict.fromkeys(counts.split(), count), "suspend": flag, "template": pod}
    spec = {
        "concurrencyPolicy": {"enum": ["Allow", "Forbid", "Replace"]},
        "failedJobsHistoryLimit": count,
        "jobTemplate": _closed({"metadata": METADATA, "spec": _closed(job, "template")}, "spec"),
        "schedule": text,
        "startingDeadlineSeconds": count,
        "successfulJobsHistoryLimit": count,
        "suspend": flag,
        "timeZone": text,
    }
    parts = {"apiVersion": {"const": "batch/v1"}, "kind": text, "metadata": METADATA}
    spec_schema = _closed(spec, "jobTemplate", "schedule")
    return _closed({**parts, "spec": spec_schema}, "apiVersion", "kind", "metadata", "spec")


#: Of Kubernetes' ObjectMeta; a custom resource's own schema says nothing about it.
METADATA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "namespace": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}


def _closed(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
    }


if __name__ == "__main__":
    main()
