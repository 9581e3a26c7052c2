"""No password of a database's URL is shown, whatever the URL looks like."""

from __future__ import annotations

import os
import subprocess
import sys
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import URL

from results_db import Store, StoreError
from results_db.masking import mask_passwords, masked_within
from tuner.cli import invoke

#: Pieces of a password; none is a part of anything else in the URLs below.
_PIECES = st.sampled_from(["S3CRET", "ZQXJ", "K9V"])
_BETWEEN = st.text("@:/?#&;=% +'\"[],\\\u00e9", min_size=0, max_size=3)
passwords = st.lists(st.tuples(_PIECES, _BETWEEN), min_size=1, max_size=4).map(
    lambda parts: "".join(piece + between for piece, between in parts) + "S3CRET"
)
schemes = st.sampled_from(["postgresql", "postgresql+psycopg", "mysql", "nonsense", "sqlite"])
keys = st.sampled_from(["password", "PASSWORD", "sslpassword", "passwd", "pwd", "%70assword"])


def shows_nothing(text: str) -> bool:
    return not any(piece in text for piece in ("S3CRET", "ZQXJ", "K9V"))


@given(schemes, passwords, st.booleans())
def test_a_password_before_the_host_is_hidden(scheme, password, encoded):
    given_ = quote(password, safe="") if encoded else password
    for url in (
        f"{scheme}://user:{given_}@host/name",
        f"{scheme}://user:{given_}@host:5432/name?sslmode=require",
        f"{scheme}://:{given_}@[::1]:5432/name",
        f'"{scheme}://user:{given_}@host/name"',
        f"{scheme}://user:{given_}@ho st:port/name",
        f"{scheme}:/user:{given_}@host/name",
        f"user:{given_}@host/name",
        quote(f"{scheme}://user:{given_}@host/name", safe=""),
    ):
        assert shows_nothing(mask_passwords(url)), url


@given(schemes, keys, passwords, st.booleans())
def test_a_password_in_the_query_is_hidden(scheme, key, password, encoded):
    given_ = quote(password, safe="") if encoded else password
    for url in (
        f"{scheme}://user@host/name?{key}={given_}",
        f"{scheme}://user@host/name?sslmode=require&{key}={given_}&application_name=x",
        f"{scheme}:///name?host=/run&{key}={given_}",
        f"{scheme}://user@[host/na me?{key}={given_}",
        f"{scheme}://host:port/name?{key}={given_}",
    ):
        assert shows_nothing(mask_passwords(url)), url


@given(passwords, passwords)
def test_a_well_formed_url_loses_only_its_passwords(one, other):
    url = URL.create("postgresql", "me", one, "host", 5432, "name", query={"password": other})
    shown = mask_passwords(url.render_as_string(hide_password=False))
    assert shown == "postgresql://me:***@host:5432/name?password=***"


@given(passwords)
def test_a_connection_string_shows_no_password(password):
    assert shows_nothing(mask_passwords(f"host=here user=me password='{password}'"))


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///results/tuner.db",
        "sqlite:////home/a:b@c/tuner.db?timeout=5",
        "results/tuner.db",
        "postgresql://host:5432/name?sslmode=require&application_name=a@b",
        "postgresql+psycopg://me@one:5432,two:5433/name",
        "postgresql://[::1]:5432/name",
    ],
)
def test_what_has_no_password_is_shown_whole(url):
    assert mask_passwords(url) == url
    assert masked_within(f"at {url} now") == f"at {url} now"


def test_a_sentence_hides_passwords_outside_urls_and_keeps_sizes():
    said = """database "name;password=S3CRET" does not exist; PWD='S3CRET K9V', tokens=48."""
    shown = """database "name;password=***" does not exist; PWD=***, tokens=48."""
    assert masked_within(said) == shown


def test_a_sentence_keeps_its_other_addresses_and_its_punctuation():
    output = "see http://host:8265, (ray://host:10001) or `postgresql://me:S3CRET@h/db`: 'x://y:1'."
    assert masked_within(output) == output.replace("S3CRET", "***")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me@127.0.0.1:1/name?password=S3CRET&connect_timeout=1",
        "postgresql://me:S3CRET@127.0.0.1:1/name?connect_timeout=1",
        "postgresql://me:S3CRET",
        "postgresql://me:S3CRET/K9V",
        "mysql://me:S3CRET@127.0.0.1/name",
        "me:S3CRET@host",
        "postgresql://me:S3@CRET@host:port/name",
        "postgresql://me:K9V@S3CRET@127.0.0.1:1/name",
        "postgresql://me:K9V@S3CRET/ZQXJ@127.0.0.1:1/name",
        "postgresql://me:K9V@S3CRET?ZQXJ=x@127.0.0.1:1/name",
        "postgresql://me:K9V@S3 CRET@127.0.0.1:1/name",
        "postgresql://me@S3CRET@127.0.0.1:1/name",
        "postgresql://me@127.0.0.1:1/name;password=S3CRET",
        "postgresql://me@127.0.0.1:1;password=S3CRET;x=y",
        "mssql://127.0.0.1;user=me;password=S3CRET",
    ],
)
def test_neither_errors_nor_the_shown_configuration_tell_it(url, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError) as caught, Store.open(url):
        pass
    assert shows_nothing(f"{caught.value.message} {caught.value.hint}")
    monkeypatch.setenv("TUNER__DATABASE__URL", url)
    assert invoke(["config", "show"]) == 0
    assert invoke(["status"]) == 2
    monkeypatch.delenv("TUNER__DATABASE__URL")
    (tmp_path / "config.yaml").write_text(f"version: 1\ndatabase: '{url}'\n")
    assert invoke(["config", "check"]) == 2
    output = capsys.readouterr()
    assert shows_nothing(output.out + output.err)


def test_the_doctor_does_not_tell_it_either(tmp_path):
    url = "postgresql://me@127.0.0.1:1/name?password=S3CRET&connect_timeout=1"
    done = subprocess.run(
        [sys.executable, "-m", "tuner", "doctor"],
        env={**os.environ, "TUNER__DATABASE__URL": url},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "database" in done.stdout
    assert shows_nothing(done.stdout + done.stderr)


@pytest.mark.parametrize("word", ["x", "password", "passwd=", "pwd ", "a://", "a@", ".!", "%41"])
def test_a_word_of_a_million_characters_is_masked_in_linear_time(word):
    """Quadratic time would be hours."""
    text = f"error: {word * (1_000_000 // len(word))}"
    assert len(masked_within(text)) <= len(text) + len("***")
    assert len(mask_passwords(text)) <= len(text) + len("***")
