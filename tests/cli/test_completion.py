"""What bash, zsh and fish complete, asked as their scripts ask."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_samples import HOSTILE, fill

from results_db import Store

CONFIG = """version: 1
kernels: ["mine.py:mine"]
campaigns:
  quick: {description: "A first run: 'small'", tasks: [{kernel: softmax}]}
  nightly: {tasks: [{kernel: "other.py:other"}]}
"""


@pytest.fixture
def ask(tuner, monkeypatch):
    """The words that a shell gets for the last word of a line."""

    def call(shell: str, line: str) -> list[str]:
        words = line.split(" ")
        with monkeypatch.context() as asked:
            asked.setenv("_TUNER_COMPLETE", f"complete_{shell}")
            asked.setenv("COMP_WORDS", line)
            asked.setenv("COMP_CWORD", f"{len(words) - 1}")
            asked.setenv("_TYPER_COMPLETE_ARGS", line)
            asked.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
            done = tuner()
        assert (done.code, done.err) == (0, "")
        if shell == "zsh":
            text = done.out.strip()
            if text == "_files":
                return []
            assert text.startswith("_arguments '*: :((")
            lines = text.removeprefix("_arguments '*: :((").removesuffix("))'").splitlines()
            return [each.split('"')[1].replace("\\\\:", ":") for each in lines]
        return [each.split("\t")[0] for each in done.out.splitlines() if each]

    return call


@pytest.fixture
def filled(folder, url):
    (folder / "config.yaml").write_text(CONFIG)
    fill(url)
    fill(url)
    with Store.open(url) as store:
        store.tag_run(1, "baseline")
    return folder


#: What a shell does at the tab key: it loads the program's script and calls its function. zsh has
#: `_arguments` only while a line is edited; its stand-in prints what the real one would get.
AT_TAB = {
    "bash": """eval "$(env _TUNER_COMPLETE=source_bash tuner)"
        read -ra COMP_WORDS <<<"$1"; [[ $1 == *' ' ]] && COMP_WORDS+=('')
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _tuner_completion tuner; printf '%s\\n' "${COMPREPLY[@]}" """,
    "zsh": """compdef() { }; _arguments() { print -r -- $1 }
        eval "$(env _TUNER_COMPLETE=source_zsh tuner)"
        words=("${(@s: :)1}"); CURRENT=$#words; _tuner_completion""",
    "fish": """env _TUNER_COMPLETE=source_fish tuner | source; complete -C "$argv[1]" """,
}


def press_tab(shell: str, line: str, folder) -> set[str]:
    """The words that the real shell offers for the last word of a line."""
    if shutil.which(shell) is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{shell} is not installed, and CI tests with it")
        pytest.skip(f"needs {shell}")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    given = [line] if shell == "fish" else [shell, line]
    done = subprocess.run(
        [shell, "-c", AT_TAB[shell], *given], env=os.environ | {"PATH": path}, cwd=folder,
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    if shell == "zsh":
        return set(re.findall(r'"([^"]+)"(?::"[^"]*")?', done.stdout))
    return {each.split("\t")[0] for each in done.stdout.splitlines() if each}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_completes_what_the_configuration_and_the_database_have(shell, filled):
    assert press_tab(shell, "tuner run n", filled) == {"nightly"}
    assert press_tab(shell, "tuner status ", filled) == {"2", "1", "baseline"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tuner run ", {"quick", "nightly"}),
        ("tuner bench softm", {"softmax", "softmax_backward"}),
        ("tuner status --format ", {"table", "json", "csv", "md"}),
        ("tuner compare 1 b", {"baseline"}),
        ("tuner show b", {"baseline"}),
        ("tuner tag b", {"baseline"}),
        ("tuner forget --run b", {"baseline"}),
        ("tuner report b", {"baseline"}),
        ("tuner run --kernel o", {"online_softmax", "other.py:other"}),
        ("tuner best mi", {"mine.py:mine"}),
        ("tuner spaces show mi", {"mine.py:mine"}),
        ("tuner export -f v", {"vllm"}),
    ],
)
def test_the_words_of_a_command(line, words, filled, ask):
    assert set(ask("bash", line)) == words


def test_another_configuration_of_the_line_is_read(filled, ask, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert ask("bash", f"tuner run --config {filled / 'config.yaml'} ") == ["quick", "nightly"]


def test_nothing_is_completed_and_nothing_made_where_nothing_is(folder, ask):
    for line in ("tuner run ", "tuner status ", "tuner run --config none.yaml "):
        assert ask("bash", line) == []
        assert ask("zsh", line) == []
    assert os.listdir(folder) == []


@pytest.mark.parametrize("text", ["version: [", "version: 1\ncampaigns: 5\n", "\0", "version: 9"])
def test_a_broken_configuration_is_silent(text, folder, ask):
    (folder / "config.yaml").write_text(text)
    assert ask("bash", "tuner run ") == []
    assert ask("fish", "tuner status ") == []


def test_a_broken_or_absent_database_is_silent(filled, url, ask):
    (filled / "results" / "tuner.db").write_bytes(b"no database" * 500)
    assert ask("bash", "tuner status ") == []
    config = CONFIG + "database: {url: 'postgresql+psycopg://nobody@127.0.0.1:1/none'}\n"
    (filled / "config.yaml").write_text(config)
    assert ask("bash", "tuner status ") == []
    assert ask("bash", "tuner run ") == ["quick", "nightly"]


def test_a_hostile_name_in_the_database_is_inert(filled, url, ask):
    with Store.open(url) as store:
        store.begin_run(HOSTILE, "spec", 7, {"host": "here"}, {"tasks": []})
    found = ask("fish", "tuner status ")
    assert found == ["3", "2", "1", "baseline"]
