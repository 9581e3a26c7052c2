"""The runtime loads the standard library alone, and may be carried elsewhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

from table_documents import document, written

from tuner import runtime

IMPORT = """
import json, sys
before = set(sys.modules)
import tuner.runtime
tuner.runtime.lookup("k", {"n": 1}, tables="nowhere", device="x")
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps(sorted(new - set(sys.stdlib_module_names))))
"""


def test_importing_the_runtime_loads_the_standard_library_alone():
    command = [sys.executable, "-c", IMPORT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == '["tuner"]'


def test_a_library_may_carry_a_copy_of_the_runtime(tmp_path):
    """Copied elsewhere under another name, it works without the farm being installed."""
    shutil.copytree(Path(runtime.__file__).parent, tmp_path / "carried" / "tables_runtime")
    written(tmp_path / "k.json", document([({"n": 64}, {"BLOCK": 1})]))
    code = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path / "carried")!r})
        import tables_runtime as runtime
        hit = runtime.lookup(
            "scale", {{"n": 64}}, tables={str(tmp_path / "k.json")!r}, device="NVIDIA H200"
        )
        assert hit.config == {{"BLOCK": 1}}
        assert not any(name.startswith("tuner") for name in sys.modules)
        """
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
