"""Recording: which launches are seen, what a record holds, and that nothing else changes."""

from __future__ import annotations

import base64
import functools
import gc
import hashlib
import json
import sys
import threading
import weakref
import zlib
from dataclasses import replace

import pytest
import torch
from capture_calls import apply_own, bound, captured
from triton.runtime.jit import JITFunction, KernelInterface

import tuner
from search_spaces.errors import TunerError

STACKINGS = {
    "plain": (),
    "tuned": ("autotune",),
    "tuned_over_heuristics": ("autotune", "heuristics"),
    "heuristics_over_tuned": ("heuristics", "autotune"),
    "heuristics_alone": ("heuristics",),
    "from_table": ("autotune",),
}


def tensors(n=1000, dtype=torch.float32):
    torch.manual_seed(0)
    return torch.randn(n).to(dtype), torch.randn(n).to(dtype), torch.zeros(n, dtype=dtype)


def launch(kernel, x, y, out, scale=2.0, **more):
    n = out.numel()
    kernel[lambda meta: (-(-n // meta["BLOCK"]),)](x, y, out, n, scale, **more)


@pytest.fixture
def plain_calls(kernels):
    """One launch of a kernel."""
    return captured(launch, kernels.plain, *tensors(), BLOCK=128)


@pytest.fixture
def edit(plain_calls, tmp_path):
    """Changes the file of one call, of which it gets the whole document and the call."""
    file = tmp_path / "calls.json"
    plain_calls.save(file)
    document = json.loads(file.read_text())

    def edited(change):
        change(document, document["calls"][0])
        file.write_text(json.dumps(document))
        return file

    return edited


@pytest.mark.filterwarnings("ignore:kernel from_table")
@pytest.mark.parametrize("name", STACKINGS)
def test_every_stacking_is_one_call_and_computes_what_it_did(kernels, name):
    x, y, out = tensors()
    kernel, options = getattr(kernels, name), {"BLOCK": 128} if name == "plain" else {}
    with tuner.capture() as calls:
        for _ in range(3):
            launch(kernel, x, y, out, **options)
    assert torch.equal(out, x + 2.0 * y)
    (call,) = calls.records
    assert (call.kernel, call.count, call.problem) == (name, 3, "")
    assert call.decorators == STACKINGS[name]
    assert call.configs == (4 if "autotune" in STACKINGS[name] else 0)
    assert call.arguments["n"] == 1000
    assert call.arguments["scale"] == 2.0
    assert [view.shape for view in call.views] == [(1000,)] * 3
    block = {**call.default, **call.arguments}.get("BLOCK", 128)
    assert call.grid.sizes == (-(-1000 // block),)
    assert call.place == f"capture_kernels:{name}"


def test_launches_that_triton_specialises_differently_are_different_calls(kernels):
    x, y, out = tensors()
    longer = torch.randn(1001)
    with tuner.capture() as calls:
        launch(kernels.plain, x, y, out, BLOCK=128)
        launch(kernels.plain, x, y, out, BLOCK=64)  # another constant
        launch(kernels.plain, x, y, out, 1, BLOCK=128)  # an integer 1
        launch(kernels.plain, x, y, out, BLOCK=128, num_warps=8)  # an option
        launch(kernels.plain, longer[1:], y, out, BLOCK=128)  # not aligned to 16 bytes
        launch(kernels.plain, x, x, out, BLOCK=128)  # two arguments are one tensor
        launch(kernels.plain, *tensors(999), BLOCK=128)  # other sizes
        launch(kernels.plain, *tensors(1000, torch.float16), BLOCK=128)  # another dtype
        launch(kernels.plain, torch.randn(2000)[::2], y, out, BLOCK=128)  # other strides
        launch(kernels.plain, x, y, out, BLOCK=128)  # the first again
    assert len(calls) == 9
    assert [call.count for call in calls.records] == [2, *[1] * 8]
    assert calls.records[4].buffers[0].misalignment == 4
    shared = calls.records[5]
    assert [view.buffer for view in shared.views] == [0, 0, 1]
    assert calls.records[8].views[0].strides == (2,)


def test_values_that_are_equal_in_python_and_not_in_triton_are_different_calls(kernels):
    x, _, out = tensors(64)
    index = torch.arange(64)
    with tuner.capture() as calls:
        for value in (1, 1.0, None, 1, float("nan")):
            kernels.gathered[(1,)](x, index, out, 64, value, (x, 3), 64)
    assert [call.count for call in calls.records] == [2, 1, 1, 1]
    found = [call.arguments["optional"] for call in calls.records]
    assert [repr(value) for value in found] == ["1", "1.0", "None", "{'float': 'nan'}"]


def test_views_of_one_storage_share_a_buffer_only_where_they_overlap(kernels):
    whole = torch.randn(3000)
    apart = whole[:1000], whole[1000:2000], whole[2000:]
    overlapping = whole[:1000], whole[4:1004], whole[2000:]
    (first,), (second,) = (
        captured(launch, kernels.plain, *views, BLOCK=128).records for views in (apart, overlapping)
    )
    assert [view.buffer for view in first.views] == [0, 1, 2]
    assert [(view.buffer, view.offset) for view in second.views] == [(0, 0), (0, 16), (1, 0)]
    assert second.buffers[0].bytes == 4016


def test_a_callable_grid_is_kept_for_all_blocks_and_a_tuple_is_noted(kernels):
    x, y, out = tensors()
    with tuner.capture() as calls:
        launch(kernels.tuned, x, y, out)
        kernels.plain[(8,)](x, y, out, 1000, 2.0, BLOCK=128)
    tuned, plain = calls.records
    assert tuned.grid.callable
    assert tuned.grid.reads == ("BLOCK",)
    for block in (16, 64, 128, 512):
        assert tuned.grid.of({"BLOCK": block, "num_warps": 4}) == (-(-1000 // block),)
    assert tuned.grid.of({"BLOCK": 96}) is None
    assert (plain.grid.sizes, plain.grid.callable) == ((8,), False)
    assert "tuple grid" in f"{calls}"


def test_contents_of_integers_are_kept_and_of_others_on_request_only(kernels):
    x, _, out = tensors()
    index = torch.randperm(1000)
    arguments = (x, index, out, 1000, None, (x, 3), 128)
    with tuner.capture() as calls, tuner.capture(contents="keep") as everything:
        kernels.gathered[(8,)](*arguments)
    (call,), (kept,) = calls.records, everything.records
    assert call.arguments["optional"] is None
    assert call.arguments["pair"] == {"tuple": [{"view": 3}, 3]}
    by_name = {buffer.name: buffer for buffer in call.buffers}
    assert calls[0].contents[by_name["index"].contents] == index.numpy().tobytes()
    assert not by_name["x"].contents
    values = by_name["x"].values
    assert values.mean == pytest.approx(float(x.mean()), abs=1e-6)
    assert (values.low, values.high) == (float(x.min()), float(x.max()))
    assert everything[0].contents[kept.buffers[0].contents] == x.numpy().tobytes()


def test_contents_are_those_before_the_launch(kernels):
    index = torch.arange(64)
    given = index.flip(0).contiguous(), index, index, 64, None, (1,), 64
    calls = captured(kernels.gathered[(1,)], *given)
    assert torch.equal(index, torch.arange(64).flip(0))
    shared = calls.records[0].buffers[1]
    assert calls[0].contents[shared.contents] == torch.arange(64).numpy().tobytes()


def test_hooks_are_gone_after_the_block_also_after_an_exception(kernels):
    before = JITFunction.run, KernelInterface.__dict__.get("__init_subclass__")

    def work(calls):
        launch(kernels.plain, *tensors(), BLOCK=128)
        assert JITFunction.run is not before[0]
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"), tuner.capture() as calls:
        work(calls)
    assert (JITFunction.run, KernelInterface.__dict__.get("__init_subclass__")) == before
    launch(kernels.plain, *tensors(), BLOCK=128)
    assert [call.count for call in calls.records] == [1]


def test_nested_blocks_each_see_their_launches(kernels):
    with tuner.capture() as outer:
        launch(kernels.plain, *tensors(), BLOCK=128)
        with tuner.capture() as inner:
            launch(kernels.plain, *tensors(), BLOCK=128)
        launch(kernels.plain, *tensors(), BLOCK=128)
    assert [call.count for call in outer.records] == [3]
    assert [call.count for call in inner.records] == [1]


def test_launches_of_other_threads_are_recorded(kernels):
    """One after the other, as the interpreter serves them; counts of many are the matcher's."""
    given = (kernels.plain, *tensors(64))
    with tuner.capture() as calls:
        for _ in range(2):
            thread = threading.Thread(target=launch, args=given, kwargs={"BLOCK": 64})
            thread.start()
            thread.join()
    assert [call.count for call in calls.records] == [2]


def test_a_launch_that_fails_is_recorded_with_its_reason_and_raises_as_before(kernels):
    x, *_ = tensors()
    with tuner.capture() as calls, pytest.raises(Exception, match="Assertion"):
        kernels.failing[(1,)](x, BLOCK=4)
    (call,) = calls.records
    assert call.problem.startswith("its launch raises ")
    assert "\n" not in call.problem


def test_further_kinds_of_launch_are_counted_without_a_key_and_not_recorded(kernels, monkeypatch):
    """A scalar that counts steps makes every launch another kind."""
    given = (kernels.plain, *tensors(64))
    with tuner.capture() as calls:
        for step in range(64):
            launch(*given, step + 2, BLOCK=64)
        monkeypatch.setattr("tuner.capturing.recorder.key_of", None)
        for step in (*range(64, 70), 0):
            launch(*given, step + 2, BLOCK=64)
    assert [call.count for call in calls.records] == [2, *[1] * 63]
    assert dict(calls.dropped) == {"plain": 6}
    *rows, further = f"{calls}".splitlines()[1:]
    assert "plain: 6 launches" in further
    assert [row.split()[-1] for row in rows] == ["scale"] * 64


def test_recording_keeps_no_tensor_alive(kernels):
    def work():
        x, y, out = tensors()
        launch(kernels.plain, x, y, out, BLOCK=128)
        grid = lambda meta: (-(-x.numel() // meta["BLOCK"]),)  # noqa: E731
        kernels.tuned[grid](x, y, out, 1000, 2.0)
        kernels.tuned[functools.partial(_grid_of, x)](x, y, out, 1000, 3.0)
        return [weakref.ref(each) for each in (x, y, out)]

    with tuner.capture() as calls:
        seen = work()
        gc.collect()
        assert [each() for each in seen] == [None] * 3
    assert [call.problem for call in calls.records] == [""] * 3


def _grid_of(x, meta):
    return (-(-x.numel() // meta["BLOCK"]),)


def test_kernels_are_found_by_name_and_by_row(kernels):
    with tuner.capture() as calls:
        launch(kernels.plain, *tensors(), BLOCK=128)
        launch(kernels.tuned, *tensors())
        launch(kernels.plain, *tensors(999), BLOCK=128)
    assert calls.names == ("plain", "tuned")
    assert [call.count for call in calls["plain"].calls] == [1, 1]
    assert calls["capture_kernels:tuned"].name == "tuned"
    assert calls[-1].calls == calls["plain"][1].calls
    assert len(list(calls)) == 3
    with pytest.raises(TunerError, match="did you mean 'plain'") as unknown:
        calls["plane"]
    assert unknown.value.hint == "the kernels are plain, tuned"
    with pytest.raises(TunerError, match="there is no call 3"):
        calls[3]


def test_two_kernels_of_one_name_are_told_apart_by_their_places(kernels, tmp_path, monkeypatch):
    text = "import triton\n\n@triton.jit\ndef plain(x):\n    pass\n"
    (tmp_path / "other_capture_kernels.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    import other_capture_kernels as other

    with tuner.capture() as calls:
        launch(kernels.plain, *tensors(), BLOCK=128)
        other.plain[(1,)](torch.zeros(4))
    with pytest.raises(TunerError, match="2 captured kernels are named 'plain'") as several:
        calls["plain"]
    assert "other_capture_kernels:plain" in several.value.hint
    assert len(calls["other_capture_kernels:plain"]) == 1


def test_the_html_table_escapes_what_a_kernel_is_called(plain_calls):
    renamed = tuner.CapturedKernel([replace(plain_calls.records[0], kernel="<b>")], {})
    assert "&lt;b&gt;" in renamed._repr_html_()
    assert "<b>" not in renamed._repr_html_()
    assert "<td>plain</td>" in plain_calls._repr_html_()


def test_calls_survive_a_file(kernels, tmp_path):
    x, y, out = tensors()
    with tuner.capture(contents="keep") as calls:
        launch(kernels.tuned, x, y, out)
        kernels.gathered[(8,)](x, torch.randperm(1000), out, 1000, None, (x, float("inf")), 128)
    file = tmp_path / "calls.json"
    calls.save(file)
    loaded = tuner.load_calls(file)
    assert [each.free for each in loaded.records] == [("scale",), ()]
    as_recorded = [replace(call, written=None, free=None) for call in loaded.records]
    assert as_recorded == list(calls.records)
    assert all(call.written for call in loaded.records)
    assert f"{loaded}" == f"{calls}"
    for buffer in (buffer for call in calls.records for buffer in call.buffers):
        assert loaded[0].contents[buffer.contents] == calls[0].contents[buffer.contents]
    again = tmp_path / "again.json"
    loaded.save(again)
    assert again.read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is damaged"),
        ("[]", "no file of captured calls"),
        ('{"format": "tuner calls", "version": 9}', "version 9 of captured calls is unknown"),
        ('{"format": "tuner calls", "version": 1, "calls": [{}], "contents": {}}', "damaged"),
        ('{"format": "tuner calls", "version": 1, "calls": [], "contents": {"a": "eJw="}}', "dam"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path, text, message):
    file = tmp_path / "calls.json"
    file.write_text(text)
    with pytest.raises(TunerError, match=message) as refused:
        tuner.load_calls(file)
    assert "\n" not in refused.value.message
    assert "tuner capture -o" in refused.value.hint


def packed(size):
    """Contents of zeros in a file, by name; they are never held as a whole."""
    pressed, sha = zlib.compressobj(9), hashlib.sha256()
    data = b""
    for _ in range(size >> 20):
        data += pressed.compress(bytes(1 << 20))
        sha.update(bytes(1 << 20))
    text = base64.b64encode(data + pressed.flush()).decode()
    return sha.hexdigest(), {sha.hexdigest(): text}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["kernel"], 'k"""\nimport os\nos.abort()\n"""'),
        (["kernel"], "../../k"),
        (["place"], "os; import abort:k"),
        (["place"], "capture_kernels:plain.__class__()"),
        (["arguments", "n"], {"function": "a b:c"}),
        (["arguments", "n"], {"shell": "true"}),
        (["arguments", "n"], {"view": 7}),
        (["arguments", "a b"], 1),
        (["options", "extern_libs"], 1),
        (["options", "num_warps"], "4; abort"),
        (["default", "ir_override"], "/tmp/x.ptx"),
        (["views", 0, "shape"], [1 << 60]),
        (["views", 0, "dtype"], "__class__"),
        (["buffers", 0, "bytes"], -4),
        (["buffers", 0, "contents"], "../secret"),
        (["grid", "reads"], ["__import__('os')"]),
        (["written"], [{"buffer": 9, "updated": 1, "partial": 1, "scale": 0, "noise": 0}]),
    ],
)
def test_a_file_of_calls_holds_names_and_numbers_only(edit, path, value):
    def change(document, at):
        for name in path[:-1]:
            at = at[name]
        at[path[-1]] = value

    with pytest.raises(TunerError, match="it is damaged") as refused:
        tuner.load_calls(edit(change))
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("claimed", "message"),
    [(4000, "size or checksum"), (1 << 31, "would unpack"), (1 << 45, "the size of")],
)
def test_contents_of_another_size_than_their_tensor_are_refused(edit, claimed, message):
    def change(document, call):
        name, document["contents"] = packed(1 << 25)
        call["buffers"][0].update(contents=name, bytes=claimed)

    with pytest.raises(TunerError, match=message):
        tuner.load_calls(edit(change))


def test_a_place_names_a_module_or_a_script_of_the_working_folder(edit, tmp_path, monkeypatch):
    script = tmp_path / "theirs" / "script.py"
    script.parent.mkdir()
    script.write_text("import triton\nraise SystemExit('it was imported')\n")
    file = edit(lambda document, call: call.update(place=f"{script}:plain"))
    (call,) = tuner.load_calls(file).records
    assert "neither in the working folder nor on the import path" in call.problem
    with pytest.raises(TunerError, match="neither in the working folder"):
        tuner.tune(tuner.load_calls(file)["plain"])
    monkeypatch.chdir(tmp_path)
    (call,) = tuner.load_calls(file).records
    assert not call.problem
    edit(lambda document, call: call.update(place="capture_kernels:plain"))
    edit(lambda document, call: call["arguments"].update(n={"function": "os:system"}))
    with pytest.raises(TunerError, match=r"os:system is no function under @triton.jit"):
        tuner.load_calls(file)["plain"].declare()


def test_large_tensors_of_indices_are_kept_and_others_stay_in_their_range(kernels):
    x, out = torch.randn(1000), torch.empty(1000)
    order = torch.randperm(300_000)  # 2.4 MB
    weights = torch.randint(7, 9, (2 << 20,), dtype=torch.uint8)
    weights[-1] = 200  # no sample holds it
    far = torch.full((1000,), (1 << 62) + 1)
    with tuner.capture() as calls:
        for index in (order, far, weights):
            kernels.gathered[(1,)](x, index, out, 10, None, None, BLOCK=16)
    first, second, third = (call.calls[0].buffers for call in calls)
    assert calls[0].contents[first[1].contents] == order.numpy().tobytes()
    assert len(calls[0].contents.packed[first[1].contents]) < order.nbytes / 2
    assert (second[1].values.low, second[1].values.high) == ((1 << 62) + 1, (1 << 62) + 1)
    assert (third[1].contents, third[1].values.low, third[1].values.high) == ("", 7, 200)


def test_a_kernel_of_several_configs_says_that_it_needs_a_gpu(kernels):
    from triton.runtime import Autotuner

    plain = kernels.plain
    kernels.bare = Autotuner(plain, plain.arg_names, kernels.CONFIGS, ["n"], None, None)
    with tuner.capture() as calls, pytest.raises(RuntimeError, match="driver"):
        launch(kernels.bare, *tensors())
    assert "times its 4 configs on a GPU, and there is none here" in calls.records[0].problem
    assert "\n" not in calls.records[0].problem


def test_an_autotuner_of_the_librarys_own_is_named_and_what_is_below_it_is_tuned(kernels, tmp_path):
    with tuner.capture() as calls:
        launch(kernels.tuned_by_library, *tensors())
        launch(kernels.tuned_by_library.fn, *tensors(), BLOCK=64)
    own, below = calls.records
    assert own.problem == (
        "capture_kernels.LibrarysTuner, which chooses its configs, is no autotuner of Triton; "
        "launch the function below it, `capture_kernels.tuned_by_library.fn[grid](...)`, with the "
        "values of a config"
    )
    assert (below.problem, below.place) == ("", "capture_kernels:tuned_by_library.fn")
    kernel = calls[1].declare(space={"BLOCK": [128]})
    assert len(list(bound(kernel).enumerate())) == 2
    again = functools.partial(launch, kernels.tuned_by_library.fn, *tensors(), BLOCK=64)
    assert apply_own(kernel, again, tmp_path) == [(1, 0)]


CONDITIONAL = """
import os
import triton
import triton.language as tl

GPU = bool(os.environ.get("HAS_A_GPU"))
if GPU:
    @triton.jit
    def doubled(x, out, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(out + at, 2.0 * tl.load(x + at))
if os.environ.get("HAS_NO_DRIVER"):
    raise RuntimeError("no driver")
"""


def test_a_kernel_that_only_a_machine_with_a_gpu_has_says_so(interpreted, tmp_path, monkeypatch):
    (tmp_path / "conditional_kernels.py").write_text(CONDITIONAL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HAS_A_GPU", "1")
    kernel = interpreted("conditional_kernels").doubled
    captured(kernel[(1,)], torch.randn(16), torch.empty(16), 16).save(tmp_path / "calls.json")
    monkeypatch.delenv("HAS_A_GPU")
    for variable, message in (
        ("NOTHING", "defines doubled under `if GPU:`, and no GPU is visible here"),
        ("HAS_NO_DRIVER", "importing conditional_kernels fails with RuntimeError"),
    ):  # fmt: skip
        sys.modules.pop("conditional_kernels")
        monkeypatch.setenv(variable, "1")
        with pytest.raises(TunerError, match=message) as refused:
            tuner.load_calls(tmp_path / "calls.json")[0].declare()
        assert "\n" not in refused.value.message
        assert "on a machine with a GPU" in refused.value.hint


def test_missing_files_and_wrong_options_are_refused_in_one_line(tmp_path):
    with pytest.raises(TunerError, match="No such file"):
        tuner.load_calls(tmp_path / "none.json")
    with pytest.raises(TunerError, match="contents is 'all'"), tuner.capture(contents="all"):
        pass


@pytest.fixture
def compiled(kernels):
    """A launch that cannot be compiled: Dynamo does not know kernels of the interpreter."""
    torch._dynamo.reset()

    def add(x, y):
        out = torch.empty_like(x)
        launch(kernels.plain, x, y, out, BLOCK=128)
        return out

    yield torch.compile(add, backend="eager", fullgraph=True)
    torch._dynamo.reset()


def test_compiled_functions_run_eagerly_while_they_are_recorded(compiled):
    x, y, _ = tensors()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(x, y)
    with tuner.capture() as calls:
        out = compiled(x, y)
        with tuner.capture() as inner:
            found = []
            thread = threading.Thread(target=lambda: found.append(compiled(x, y)))
            thread.start()
            thread.join()
        compiled(x, y)
    assert torch.equal(out, x + 2.0 * y)
    assert torch.equal(out, found[0])
    assert [(call.kernel, call.count, call.problem) for call in calls.records] == [("plain", 3, "")]
    assert [call.count for call in inner.records] == [1]
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(x, y)


def test_the_stance_of_the_user_comes_back(compiled):
    x, y, _ = tensors()
    with torch.compiler.set_stance("fail_on_recompile"):
        with tuner.capture() as calls:
            compiled(x, y)
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            compiled(x, y)
    assert len(calls) == 1


def test_a_capture_within_a_compiled_function_records_what_is_not_compiled(kernels, caplog):
    """A compiled function stays compiled until it returns, and the log says so."""
    x, y, out = tensors()
    found = []

    @torch.compiler.disable
    def run():
        launch(kernels.plain, x, y, out, BLOCK=128)

    def step(x):
        with tuner.capture() as calls:
            run()
        found.append(calls)
        return x + 1

    torch._dynamo.reset()
    assert torch.equal(torch.compile(step, backend="eager")(x), x + 1)
    assert torch.equal(out, x + 2.0 * y)
    assert [call.count for call in found[0].records] == [1]
    assert "not recorded here" in caplog.text
