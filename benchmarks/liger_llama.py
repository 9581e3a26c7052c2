"""A small Llama-like forward pass with Liger's kernels: captured, tuned, applied.

Each captured call is compared, interleaved, with the library's own config. Results of the pass are
compared with and without the recorder, and with and without the tables; both also with the same
pass in float32 of torch alone. Usage:

    python benchmarks/liger_llama.py --out OUT [--budget '{"trials": 12}'] [--layers 4]

Writes OUT/liger_llama.json. liger-kernel may lie anywhere on Python's import path.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import torch  # noqa: E402
from matmul_tasks import facts  # noqa: E402

import tuner  # noqa: E402

GPU = torch.cuda.is_available()
HEAD = 128
#: The largest relative difference of results with and without tables: two steps of bfloat16.
TOLERANCE = 2**-7
#: How much larger the error against float32 may be with tables.
MOST_ERROR = 1.02


class Llama:
    """Attention and feed-forward layers whose element-wise work is Liger's."""

    def __init__(self, layers: int, hidden: int, inner: int, vocabulary: int, device: str) -> None:
        torch.manual_seed(0)

        def weights(*sizes: int) -> torch.Tensor:
            return torch.randn(sizes, dtype=torch.bfloat16, device=device) / sizes[-1] ** 0.5

        self.hidden, self.device = hidden, device
        self.embedding = weights(vocabulary, hidden) * hidden**0.5
        self.head = weights(vocabulary, hidden)
        self.layers = [
            {
                "qkv": weights(3 * hidden, hidden),
                "out": weights(hidden, hidden),
                "gate_up": weights(2 * inner, hidden),
                "down": weights(hidden, inner),
                "norms": torch.ones(2, hidden, dtype=torch.bfloat16, device=device),
            }
            for _ in range(layers)
        ]

    def __call__(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The last hidden states and the loss of each next token."""
        from liger_kernel.ops.cross_entropy import cross_entropy_forward
        from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction as AddNorm
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction as Norm

        x = self.embedding[tokens]
        _, length, hidden = x.shape
        turn = angles_of(length, self.device)
        for layer in self.layers:
            normed = Norm.apply(x, layer["norms"][0], 1e-6, 0.0, "llama", False)
            attended = self.attention(layer, normed, turn)
            normed, x = AddNorm.apply(attended, x, layer["norms"][1], 1e-6, 0.0, "llama", False)
            x = x + self.feed_forward(layer, normed)
        logits = (x.view(-1, hidden) @ self.head.T).contiguous()
        target = tokens.roll(-1, 1).view(-1)
        loss = cross_entropy_forward(logits, target, None, -100, 0.0, 0.0, "none", None, False)[0]
        return x, loss

    def attention(self, layer: Any, x: torch.Tensor, turn: Any) -> torch.Tensor:
        batch, length, hidden = x.shape
        split = (x @ layer["qkv"].T).view(batch, length, 3, -1, HEAD).permute(2, 0, 3, 1, 4)
        q, k = self.rotated(split[0], split[1], turn)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, split[2], is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, length, hidden) @ layer["out"].T

    def rotated(self, q: torch.Tensor, k: torch.Tensor, turn: Any) -> tuple[torch.Tensor, ...]:
        from liger_kernel.ops.rope import LigerRopeFunction

        turned: tuple[torch.Tensor, ...] = LigerRopeFunction.apply(q, k, *turn)
        return turned

    def feed_forward(self, layer: Any, x: torch.Tensor) -> torch.Tensor:
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction

        gate, up = (x @ layer["gate_up"].T).chunk(2, -1)
        return LigerSiLUMulFunction.apply(gate.contiguous(), up.contiguous()) @ layer["down"].T


class InFloat32(Llama):
    """The same layers, computed by torch in float32 from the same weights."""

    def __init__(self, model: Llama) -> None:
        self.hidden, self.device = model.hidden, model.device
        self.embedding, self.head = model.embedding.float(), model.head.float()
        self.layers = [{name: w.float() for name, w in each.items()} for each in model.layers]

    def __call__(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        functional = torch.nn.functional
        x = self.embedding[tokens]
        _, length, hidden = x.shape
        turn = angles_of(length, self.device)
        for layer in self.layers:
            normed = functional.rms_norm(x, (hidden,), layer["norms"][0], 1e-6)
            x = x + self.attention(layer, normed, turn)
            normed = functional.rms_norm(x, (hidden,), layer["norms"][1], 1e-6)
            x = x + self.feed_forward(layer, normed)
        logits = x.view(-1, hidden) @ self.head.T
        target = tokens.roll(-1, 1).view(-1)
        return x, functional.cross_entropy(logits, target, reduction="none")

    def rotated(self, q: torch.Tensor, k: torch.Tensor, turn: Any) -> tuple[torch.Tensor, ...]:
        cos, sin = (each.float() for each in turn)
        halves = ((each, *each.chunk(2, -1)) for each in (q, k))
        return tuple(whole * cos + torch.cat((-high, low), -1) * sin for whole, low, high in halves)

    def feed_forward(self, layer: Any, x: torch.Tensor) -> torch.Tensor:
        gate, up = (x @ layer["gate_up"].T).chunk(2, -1)
        return (torch.nn.functional.silu(gate) * up) @ layer["down"].T


def angles_of(length: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of the rotary embedding, as the model has them in bfloat16."""
    angles = torch.outer(
        torch.arange(length, device=device),
        1e4 ** -(torch.arange(0, HEAD, 2, device=device) / HEAD),
    ).repeat(1, 2)
    return angles.cos().bfloat16()[None], angles.sin().bfloat16()[None]


def tuned_calls(calls: Any, session: Any, budget: Any, folder: Path, pairs: int) -> dict[str, Any]:
    """Each captured call: tuned, exported, and judged against the library's config."""
    from captured_kernels import compared

    found: dict[str, Any] = {}
    for at, record in enumerate(calls.records):
        name = f"{at} {record.kernel}"
        try:
            started = time.monotonic()
            kernel = calls[at].declare(widen=True)
            result = session.tune(kernel, budget=budget)
            facts: dict[str, Any] = {"tune_s": time.monotonic() - started, "note": result.note}
            facts["ships"] = None if result.ships is None else dict(result.ships)
            if result.ships is not None:
                result.export(folder / f"{at}")
                facts |= compared(kernel, kernel.workloads()[0], result.ships, pairs)
        except tuner.TunerError as problem:
            facts = {"problem": problem.message}
        except Exception as error:
            traceback.print_exc()
            facts = {"problem": f"{type(error).__name__}: {error}"[:1000]}
        found[name] = facts
        print(name, json.dumps(facts, default=str), flush=True)
    return found


def guarded(step: Callable[[], Any]) -> Any:
    """What a step finds, or its fault."""
    try:
        return step()
    except Exception as error:
        traceback.print_exc()
        return {"problem": f"{type(error).__name__}: {error}"[:1000]}


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=json.loads, default='{"trials": 12}')
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=208)
    parser.add_argument("--small", action="store_true", help="sizes for a CPU; nothing is tuned")
    return parser.parse_args()


def main() -> None:
    options = options_of()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    device, sizes = ("cpu", (256, 512, 300)) if options.small else ("cuda", (2048, 5632, 32000))
    model = Llama(options.layers, *sizes, device)
    tokens = torch.randint(0, sizes[-1], (1, 32) if options.small else (2, 2048), device=device)
    plain = model(tokens)
    with tuner.capture() as calls:
        for _ in range(1 if options.small else 3):
            recorded = model(tokens)
    print(calls, flush=True)
    result: dict[str, Any] = {
        "toolchain": facts(),
        "sizes": {"layers": options.layers, "hidden, inner, vocabulary": sizes,
                  "tokens": list(tokens.shape)},
        "budget": options.budget,
        "calls": f"{calls}".splitlines(),
        "same_results_while_recorded": all(map(torch.equal, plain, recorded)),
    }  # fmt: skip

    def save() -> None:
        (out / "liger_llama.json").write_text(json.dumps(result, indent=1, default=str) + "\n")

    save()
    if options.small:
        result["small"] = results_of(model, tokens, plain, recorded)
        save()
        print(json.dumps(result["small"]))
        return
    with tuner.session() as session:
        result["kernels"] = tuned_calls(calls, session, options.budget, out / "tables",
                                        options.pairs)  # fmt: skip
        save()
    judged = [each for each in result["kernels"].values() if "speedup" in each]
    logs = [math.log(each["speedup"]) for each in judged if not each["same_config"]]
    result["geometric_mean"] = math.exp(sum(logs) / max(1, len(judged)))
    result["surely_slower"] = [name for name, each in result["kernels"].items()
                               if "never_slower" in each and not each["never_slower"]]  # fmt: skip
    tables = sorted(path for path in (out / "tables").iterdir())
    result["applied"] = guarded(lambda: applied_pass(model, tokens, plain, tables))
    save()
    for name in ("geometric_mean", "surely_slower", "applied"):
        print(name, json.dumps(result[name], default=str), flush=True)


def applied_pass(model: Llama, tokens: torch.Tensor, plain: Any, tables: list[Path]) -> Any:
    with tuner.applied(tables) as used:
        ours = model(tokens)
        counts = [[use.kernel, use.state, use.hits, use.misses, use.note] for use in used.kernels]
    return {"kernels": counts, **results_of(model, tokens, plain, ours)}


def results_of(model: Llama, tokens: torch.Tensor, plain: Any, ours: Any) -> dict[str, Any]:
    """Relative differences of hidden states and loss; the errors of both passes against float32."""
    from captured_kernels import difference

    def differences(one: Any, other: Any) -> list[float]:
        return [difference(*both) for both in zip(one, other, strict=True)]

    exact = InFloat32(model)(tokens)
    found = {"differences": differences(plain, ours), "tolerance": TOLERANCE}
    found |= {"errors_plain": differences(exact, plain), "errors_applied": differences(exact, ours)}
    within = max(found["differences"]) <= TOLERANCE
    no_worse = all(
        other <= MOST_ERROR * one
        for one, other in zip(found["errors_plain"], found["errors_applied"], strict=True)
    )
    return found | {"equal_within_tolerance": within and no_worse}


if __name__ == "__main__":
    main()
