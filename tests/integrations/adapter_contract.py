"""The contract of `Adapter`: a test class that the tests of each adapter inherit.

It compares an adapter with the library's own code, whose answers are recorded in a file, and with
files of the library's package.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from search_spaces.errors import TunerError
from search_spaces.records import Device
from tuner.integrations import SizeTable, TableKey, adapter, adapters, tables_in

DATA = Path(__file__).parent / "data"
H200 = Device("cuda", "NVIDIA H200", "cuda:90", 132, shared_bytes=232_448)
#: The order of a config's values in the recorded facts.
PARAMETERS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps")
PARAMETERS = (*PARAMETERS, "num_stages", "SPLIT_K", "USE_TMA", "SWAP_AB")


def named(values):
    """A recorded config."""
    pairs = zip(PARAMETERS, values, strict=False)
    return {name: value for name, value in pairs if value is not None}


def block_of(sides):
    return tuple(sides) if sides else None


def key_of(letters, sizes, dtype, block, marks=()):
    pairs = tuple(zip(letters, sizes, strict=True))
    return TableKey(pairs, dtype, block_of(block), tuple(marks))


class AdapterContract:
    """Inherit and set the name, the letters of a key, and what the library says of its Triton."""

    name = ""
    letters = ("E", "N")
    triton = ""
    #: Options of Triton that a default without them has.
    usual = {}
    #: What is said of files that the library never reads, by parts of their keys; "" of others.
    unread = ()

    @property
    def adapter(self):
        return adapter(self.name)

    @property
    def package(self):
        return DATA / self.adapter.library

    def facts(self, kind):
        path = DATA / f"{self.adapter.library}.json"
        return json.loads(path.read_text())[self.name][kind]

    def real_files(self):
        folders = self.adapter.folders(self.package, self.triton)
        found = list(tables_in(self.adapter, folders))
        assert found, f"{DATA} has no table of {self.name}"
        return found

    def test_it_is_found_by_name_and_by_library(self):
        assert self.adapter.name == self.name
        assert self.name in [one.name for one in adapters(self.adapter.library)]

    def test_names_are_those_of_the_library(self):
        for device, dtype, block, marks, name in self.facts("names"):
            key = key_of(self.letters, (128, 768), dtype, block, marks)
            assert self.adapter.file_name(key, device) == name
            parsed, word = self.adapter.parsed_name(name)
            assert parsed == key
            assert self.adapter.file_name(parsed, word) == name

    @pytest.mark.parametrize(
        "name", ["README.md", "x.json", "E=1,N=2.json", "E=1,N=2,device_name=.json"]
    )
    def test_other_names_are_not_taken_for_tables(self, name):
        assert self.adapter.parsed_name(name) is None

    def test_files_that_the_library_never_reads_are_named(self):
        for parts, said in self.unread:
            found = self.adapter.explain_unread(key_of(self.letters, (128, 768), *parts))
            assert said in found
            assert bool(said) == bool(found)

    def test_real_files_are_read_and_written_with_all_rows(self):
        for path, _, _ in self.real_files():
            table = self.adapter.read(path.read_text(), path.name)
            document = json.loads(path.read_text())
            assert document.pop("triton_version", "") == table.triton
            assert {f"{size}": config for size, config in table.rows.items()} == document
            text = self.adapter.text_of(table)
            assert self.adapter.read(text, "again") == SizeTable(table.rows, table.triton)
            if list(table.rows) == sorted(table.rows):
                assert text.rstrip() == path.read_text().rstrip()

    def test_the_choice_is_that_of_the_library(self):
        for device, *sizes, dtype, block, rows in self.facts("choices"):
            key = key_of(self.letters, sizes, dtype, block)
            path = self.adapter.find(self.package, key, device, self.triton)
            assert path, key
            table = self.adapter.read(path.read_text(), path.name)
            for size, values in rows:
                row = table.rows[self.adapter.nearest(table.rows, size)]
                assert row == named(values), (key, size)
                launched = self.adapter.predict_launch(key, row)
                assert self.adapter.choice(table, key, size, H200) == launched

    def test_the_default_is_that_of_the_library(self):
        for first, dtype, block, size, values in self.facts("defaults"):
            key = key_of(self.letters, (first, 768), dtype, block)
            expected = {**self.usual, **named(values)}
            assert self.adapter.choice(None, key, size, H200) == expected, (key, size)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "not JSON"),
            ("[]", "not an object"),
            ("{}", "no rows"),
            ('{"a": {}}', "'a' is no size"),
            ('{"0": {}}', "'0' is no size"),
            ('{"1": 5}', "size 1 is no config"),
            ('{"1": {"BLOCK_SIZE_M": [1]}}', "size 1 is no config"),
            ('{"1": {"BLOCK_SIZE_M": 16}}', "size 1 has no BLOCK_SIZE_N"),
        ],
    )
    def test_a_malformed_file_is_refused_with_its_place(self, text, message):
        with pytest.raises(TunerError, match=message) as caught:
            self.adapter.read(text, "folder/file.json")
        assert caught.value.message.startswith("folder/file.json: ")
        assert caught.value.hint

    def test_a_parameter_that_the_library_does_not_take_is_not_written(self):
        row = dict.fromkeys(self.adapter.required, 16) | {"swizzle": 2}
        with pytest.raises(TunerError, match="size 4: the library takes no parameter swizzle"):
            self.adapter.text_of(SizeTable({4: row}))
        del row["BLOCK_SIZE_K"]
        with pytest.raises(TunerError, match="needs BLOCK_SIZE_K"):
            self.adapter.text_of(SizeTable({4: row}))

    def test_workloads_lead_back_to_their_row(self):
        for shape in self.adapter.shapes(self.model):
            for size in (1, 48):
                found = self.adapter.workloads(shape, size)
                assert found
                for kernel, workload in found:
                    place = self.adapter.place(kernel, workload)
                    assert (place.key, place.size) == (shape.key, size)
                    assert kernel in self.adapter.kernels
