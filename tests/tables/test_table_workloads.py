"""From a launch's arguments to the table's workload: defaults, dims, flags, misses."""

from __future__ import annotations

import pytest
from table_documents import add_task, outcome
from table_library import BIG, MODULE, adopted, key

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

#: As most kernels of libraries: a key that does not name all that a workload has.
WIDE = MODULE.replace(
    "def scale(x_ptr, y_ptr, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr)",
    "def scale(x_ptr, y_ptr, n, batch=1, FACTOR: tl.constexpr = 3, BLOCK: tl.constexpr = 32)",
)
BIASED = MODULE.replace("scale(x_ptr, y_ptr", "scale(bias, x_ptr, y_ptr")
#: With a factor in the key.
KEYED = MODULE.replace('key=["n"]', 'key=["n", "FACTOR"]')
OTHER = {"BLOCK": 64, "num_warps": 2}


def launched(library, *args, **kwargs):
    """The block sizes that launches of these arguments have, first and then by the short way."""
    blocks = []

    def grid(meta):
        blocks.append(meta["BLOCK"])
        return (1,)

    for _ in range(2):
        library.module.scale[grid](*args, **kwargs)
    return blocks


def tensors(n=100, dtype=torch.float32):
    return torch.zeros(n, dtype=dtype), torch.zeros(n, dtype=dtype)


def test_a_key_left_to_its_default_is_found(library, caplog):
    library.load(source=WIDE.replace('key=["n"]', 'key=["n", "batch"]'))
    library.table(({**key(), "batch": 1}, BIG), ({**key(), "batch": 2}, OTHER))
    x, y = tensors()
    assert launched(library, x, y, 100) == [128, 128]
    assert launched(library, x, y, 100, 2) == [64, 64]
    assert launched(library, x, y, 100, batch=2) == [64, 64]
    assert launched(library, x_ptr=x, y_ptr=y, n=100, batch=1) == [128, 128]
    assert library.module.BENCHED == []
    assert not caplog.records


def test_dims_beyond_the_key_are_taken_from_arguments(library, caplog):
    library.load(source=WIDE)
    library.table(
        ({**key(), "batch": 1, "FACTOR": 3}, BIG), ({**key(), "batch": 4, "FACTOR": 3}, OTHER)
    )
    x, y = tensors()
    held = library.module.scale[(1,)]
    for _ in range(2):
        held(x, y, 100, 4)
        assert library.module.scale.best_config.kwargs["BLOCK"] == 64
        held(x, y, 100, 1)
        assert library.module.scale.best_config.kwargs["BLOCK"] == 128
    assert launched(library, x, y, 100, 4) == [64, 64]
    assert launched(library, x, y, 100, FACTOR=3) == [128, 128]
    assert library.module.BENCHED == []
    assert not caplog.records


@pytest.mark.parametrize(
    "options",
    [
        'dims={"rows": lambda args: args["x_ptr"].shape[0], "size": "n"}',
        'key_map=lambda a: {"rows": a["x_ptr"].shape[0], "size": a["n"], "dtype": "float32"}',
    ],
)
def test_dims_that_are_no_arguments_are_made_of_all_arguments_at_every_launch(
    library, caplog, options
):
    library.load(options, source=WIDE)
    entry = {"size": 100, "dtype": "float32"}
    library.table(({**entry, "rows": 128}, BIG), ({**entry, "rows": 256}, OTHER))
    small, large = tensors(128), tensors(256)
    for _ in range(2):
        assert launched(library, *small, 100) == [128, 128]
        assert launched(library, *large, 100) == [64, 64]
        assert launched(library, y_ptr=large[1], x_ptr=large[0], n=100) == [64, 64]
    assert library.module.BENCHED == []
    assert not caplog.records


@pytest.mark.parametrize(
    ("extra", "options", "named"),
    [
        ({"rows": 100}, "", ["rows", "dims={"]),
        ({}, "", ["has no dim for FACTOR", "key_map"]),
        ({"rows": 100}, 'dims={"rows": lambda args: args["gone"].shape[0]}', ["gone"]),
        ({"rows": 100}, 'key_map=lambda args: {"rows": [args["n"]]}', ["unhashable"]),
        ({"rows": 100}, "key_map=lambda args: None", ["NoneType"]),
    ],
)
def test_a_dim_that_cannot_be_had_is_said_once_with_the_remedy(
    library, caplog, extra, options, named
):
    library.load(options, source=WIDE.replace('key=["n"]', 'key=["n", "FACTOR"]'))
    library.table(({**key(), **({"FACTOR": 3} if extra else {}), **extra}, BIG))
    x, y = tensors()
    for n in (100, 101):
        launched(library, x, y, n)
    assert library.module.BENCHED
    assert len(caplog.records) == 1
    assert all(part in caplog.text for part in named), caplog.text


def test_the_dtype_is_that_of_the_first_parameter_with_a_tensor(library, caplog):
    library.load()
    library.table(
        (key(), BIG, {"x_ptr": "float32", "y_ptr": "float16"}),
        (key(dtype="float16"), OTHER, {"x_ptr": "float16", "y_ptr": "float32"}),
    )
    x, y = torch.zeros(100, dtype=torch.float16), torch.zeros(100)
    assert launched(library, FACTOR=3, n=100, y_ptr=y, x_ptr=x) == [64, 64]
    assert launched(library, y, x, 100, FACTOR=3) == [128, 128]
    assert library.module.BENCHED == []


def test_a_first_parameter_that_may_be_none_does_not_mix_dtypes(library):
    library.load(source=BIASED)
    library.table((key(), BIG), (key(dtype="float16"), OTHER))
    x, y = tensors()
    half, out = x.half(), y.half()
    for _ in range(2):
        assert launched(library, None, x, y, 100, FACTOR=3) == [128, 128]
        assert launched(library, None, half, out, 100, FACTOR=3) == [64, 64]
        assert launched(library, x, x, y, 100, FACTOR=3) == [128, 128]
        assert launched(library, half, half, out, 100, FACTOR=3) == [64, 64]
    assert library.module.BENCHED == []


DTYPES = {"bias": "int64", "x_ptr": "bfloat16", "y_ptr": "float32"}


@pytest.mark.parametrize("by_name", [False, True])
def test_the_dtypes_of_all_tensors_belong_to_the_key(library, caplog, by_name):
    kernel = library.load(source=BIASED)
    library.table((key(dtype="int64"), BIG, DTYPES))
    right = {name: torch.zeros(100, dtype=getattr(torch, d)) for name, d in DTYPES.items()}

    def hit(**other):
        given = {**right, **other, "n": 100, "FACTOR": 3}
        return kernel.hit(**given) if by_name else kernel.hit(*given.values())

    assert hit(x_ptr=torch.zeros(100)) is None
    assert "was measured with x_ptr of dtype bfloat16, not float32" in caplog.text
    for _ in range(2):
        assert hit().how == "exact"
        for name, tensor in right.items():
            changed = {torch.float32: torch.float16}.get(tensor.dtype, torch.float32)
            assert hit(**{name: tensor.to(changed)}) is None
        assert hit(bias=None) is None


@pytest.mark.parametrize(
    ("bias", "x", "y", "found"),
    [
        ("int64", "float32", "float32", False),  # no entry of int64
        ("float32", "float32", "float32", True),
        ("float32", "int32", "float32", True),
        ("float32", "bool", "float32", True),
        ("float32", "bfloat16", "float32", False),
        ("float32", "float32", "float16", False),
        ("float32", "float8_e4m3fn", "float32", False),
    ],
)
def test_an_entry_without_dtypes_is_one_of_equal_floating_point_tensors(
    library, caplog, bias, x, y, found
):
    library.load(source=BIASED)
    library.table((key(), BIG))
    given = [torch.zeros(100, dtype=getattr(torch, dtype)) for dtype in (bias, x, y)]
    for _ in range(2):
        assert (library.module.scale.hit(*given, 100, FACTOR=3) is not None) == found
    if not found and bias == "float32":
        assert "export it again" in caplog.text


def test_flags_none_and_text_are_found_as_adopted(library, caplog):
    library.load(source=KEYED.replace("mask=at < n) * FACTOR", "mask=at < n)"))
    values = [True, 0, None, "relu", 1.5, 2]
    blocks = [32 * 2**at for at in range(len(values))]
    library.table(
        *(
            ({**key(), "FACTOR": value}, {"BLOCK": block, "num_warps": 4})
            for value, block in zip(values, blocks, strict=True)
        ),
        numeric=("n", "FACTOR"),
    )
    x, y = tensors(2048)
    for value, block in zip(values, blocks, strict=True):
        assert launched(library, x, y, 100, FACTOR=value) == [block, block]
        assert launched(library, x, y, 100, value) == [block, block]
    assert launched(library, x, y, 100, 1) == [32, 32]  # to Triton's own tuning, 1 is True
    assert launched(library, x, y, 100, False) == [64, 64]
    assert launched(library, x, y, 101, "relu") == [256, 256]
    assert library.module.BENCHED == []
    assert not caplog.records
    launched(library, x, y, 100, "gelu")
    assert library.module.BENCHED


def test_a_table_that_distinguishes_true_from_one_matches_by_type(library):
    library.load(source=KEYED)
    library.table(({**key(), "FACTOR": True}, BIG), ({**key(), "FACTOR": 1}, OTHER))
    x, y = tensors()
    for _ in range(2):
        assert launched(library, x, y, 100, True) == [128, 128]
        assert launched(library, x, y, 100, 1) == [64, 64]


def test_dtypes_and_constants_as_arguments_are_their_text(library):
    scale = library.load(source=KEYED.replace("* FACTOR", ""))
    library.table(({**key(), "FACTOR": "float16"}, BIG), ({**key(), "FACTOR": 7}, {"BLOCK": 32}))
    x, y = tensors()
    assert scale.hit(x, y, 100, torch.float16).config == BIG
    assert scale.hit(x, y, 100, triton.language.constexpr(7)).config == {"BLOCK": 32}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ('dims={"rows": "m"}', "no argument"),
        ('dims={"rows": "n"}, key_map=dict', "both"),
    ],
)
def test_dims_that_cannot_be_are_refused_at_once(library, options, text):
    with pytest.raises(ValueError, match=text):
        library.load(options)


@pytest.fixture
def export(store, run_id, tmp_path):
    """Exports a result of a workload of a kernel."""
    from tuner import tables

    def exported(kernel, workload):
        add_task(store, run_id, workload, selection=outcome())
        return tables.export(store, run_id, tmp_path / "out", "tuner", {"scale": kernel})

    return exported


@pytest.mark.parametrize(
    ("dims", "options", "warnings"),
    [
        (["n", "dtype"], "", []),
        (["n", "dtype", "FACTOR"], "", []),
        (["n", "dtype", "rows"], "", ["has the dim rows", "dims={"]),
        (["n", "dtype", "rows"], 'dims={"rows": lambda args: args["x_ptr"].shape[0]}', []),
        (["n", "dtype", "rows"], "key_map=dict", []),
        (["FACTOR", "dtype"], "", ["no dim for n", "key_map"]),
        (["n"], "", ["no dim for dtype", "key_map"]),
    ],
)
def test_an_export_names_the_table_that_no_launch_can_hit(
    library, caplog, monkeypatch, export, dims, options, warnings
):
    from search_spaces.records import Workload

    monkeypatch.delenv("TRITON_INTERPRET")
    values = {"n": 64, "dtype": "float16", "rows": 8, "FACTOR": 3}
    workload = Workload.of(**{name: values[name] for name in dims})
    export(adopted(library.load(options), workload, dims=dims), workload)
    assert len(caplog.records) == bool(warnings)
    assert all(part in caplog.text for part in warnings), caplog.text


@pytest.mark.parametrize("ranges", [{"x_ptr[0]": (65, 500)}, None], ids=["a dim", "calls"])
def test_an_export_asks_for_no_dim_that_is_made_of_a_captured_call(library, caplog, export, ranges):
    import tuner

    library.load()
    with tuner.capture() as calls:
        library.launch(100)
        library.launch(300)
    kernel = calls["scale"].declare(ranges=ranges)
    caplog.clear()
    assert export(kernel, kernel.workloads()[0])
    assert not caplog.records
