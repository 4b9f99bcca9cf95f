#!/usr/bin/env python3
"""Writes the golden files under tests/golden/ with PyTorch, transformers and PEFT.

Pinned: torch==2.13.0 transformers==5.17.0 peft==0.21.2 safetensors==0.8.0
(`script/setup --oracle` puts them into .cache/oracle; run it with .cache/oracle/bin/python).

The models are transformers' own code (attn_implementation="eager"), run in double precision
and stored as f32, so that a tolerance in a C++ test measures the C++ and not PyTorch's rounding.
Packed cases are computed one sequence at a time: no padding, nothing that packing could hide.
What the tensors are called is described in tests/golden/README.md.
"""

import argparse
import json
import math
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, get_cosine_schedule_with_warmup
from transformers.utils import logging as transformers_logging

STEPS = 10
WARMUP_STEPS = 2
LEARNING_RATE = 5e-3
WEIGHT_DECAY = 0.01
MAX_GRAD_NORM = 1.0


class DoublePrecision(TorchFunctionMode):
    """transformers casts to f32 in norms, softmax and rotary angles; here those casts go to f64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def widen(value):
            return torch.float64 if value is torch.float32 else value

        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args = tuple(widen(a) for a in args)
        kwargs = {k: widen(v) for k, v in (kwargs or {}).items()}
        return func(*args, **kwargs)


@dataclass
class Case:
    name: str
    seed: int
    lengths: list[int]
    config: dict
    transformers4: bool = False  # config.json in the manner of transformers 4
    model_type: str = "llama"
    # Share of each sequence, from its start, that is prompt and has no target.
    prompt_share: float = 0.0


def llama(vocab: int, hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, tied: bool,
          **more) -> dict:
    return {
        "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": ffn,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "tie_word_embeddings": tied, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
        "bos_token_id": 1, "eos_token_id": 2, **more,
    }


CASES = [
    Case("gqa_tied", 1, [19, 7, 13],
         llama(61, 32, 44, 3, 4, 1, tied=True,
               rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
         prompt_share=0.4),
    Case("mha_untied", 2, [37],
         llama(89, 32, 40, 2, 4, 4, tied=False, rms_norm_eps=1e-6,
               rope_parameters={"rope_type": "default", "rope_theta": 500000.0})),
    # A sequence of one token has no target and attends only to itself.
    Case("gqa_untied_rope_linear", 3, [16, 1, 21],
         llama(97, 32, 40, 2, 4, 2, tied=False, rope_theta=10000.0,
               rope_scaling={"type": "linear", "factor": 2.5}),
         transformers4=True),
    # Wavelengths from 6 to 600 positions: with these factors some frequencies are kept, some
    # divided and some interpolated, all within 40 tokens.
    Case("gqa_tied_rope_llama3", 4, [40],
         llama(64, 32, 56, 2, 2, 1, tied=True, eos_token_id=[2, 3],
               rope_parameters={"rope_type": "llama3", "rope_theta": 200.0, "factor": 8.0,
                                "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                "original_max_position_embeddings": 48}),
         prompt_share=0.25),
    # No size divides another: head_dim is not hidden/heads, and the widths are odd.
    Case("odd", 5, [11, 23, 5],
         llama(61, 21, 35, 2, 3, 1, tied=True, head_dim=52,
               rope_parameters={"rope_type": "default", "rope_theta": 10000.0})),
    # Longer than max_position_embeddings: the base grows with the sequence.
    Case("rope_dynamic", 6, [40],
         llama(61, 32, 40, 2, 4, 2, tied=False, max_position_embeddings=24,
               rope_parameters={"rope_type": "dynamic", "rope_theta": 200.0, "factor": 2.0})),
    Case("mistral", 7, [19, 30, 4],
         llama(61, 32, 44, 2, 4, 2, tied=False, sliding_window=7, head_dim=8,
               rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
         model_type="mistral", prompt_share=0.3),
    # Pairs that turn more often than 4 times in 24 positions are kept, less than 0.5 times divided.
    Case("qwen2_yarn", 8, [33, 12],
         llama(61, 32, 44, 2, 4, 1, tied=True, max_position_embeddings=96,
               rope_parameters={"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                                "original_max_position_embeddings": 24, "beta_fast": 4.0,
                                "beta_slow": 0.5}),
         model_type="qwen2"),
    # Only the second block has a sliding window.
    Case("qwen3", 9, [23, 14],
         llama(61, 32, 44, 2, 4, 2, tied=True, head_dim=12, use_sliding_window=True,
               sliding_window=5, max_window_layers=1,
               rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
         model_type="qwen3"),
    # The second block does not rotate queries and keys.
    Case("smollm3", 10, [21, 4, 17],
         llama(61, 32, 44, 3, 4, 2, tied=True, no_rope_layers=[1, 0, 1], pad_token_id=0,
               rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
         model_type="smollm3"),
]

@dataclass
class Adapter:
    """An adapter over the model of a case, with PEFT's LoraConfig."""
    name: str
    case: str
    config: dict
    lora_plus: float | None = None  # ten steps too, with B's learning rate this many times A's


ADAPTERS = [
    Adapter("lora", "gqa_tied",
            {"r": 4, "lora_alpha": 8, "target_modules": ["down_proj", "gate_proj", "q_proj", "v_proj"]}),
    # down_proj of layer 0 has the rank of the first pattern that matches, in the order of the file.
    Adapter("lora_patterns", "qwen2_yarn",
            {"r": 4, "lora_alpha": 8, "use_rslora": True,
             "target_modules": r"model\.layers\.\d+\.(self_attn\.(q|v)|mlp\.(up|down))_proj",
             "rank_pattern": {"down_proj": 3, r"layers\.0\..*": 2}, "alpha_pattern": {"q_proj": 5}},
            lora_plus=4.0),
    Adapter("dora", "gqa_tied",
            {"r": 4, "lora_alpha": 6, "use_dora": True, "rank_pattern": {"o_proj": 2},
             "target_modules": ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj"]},
            lora_plus=4.0),
    # With biases, which do not count for the lengths.
    Adapter("dora_biased", "qwen2_yarn",
            {"r": 3, "lora_alpha": 6, "use_dora": True, "target_modules": ["v_proj", "up_proj"]},
            lora_plus=4.0),
    Adapter("lora_saved_modules", "mha_untied",
            {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj"],
             "modules_to_save": ["embed_tokens", "lm_head"]}, lora_plus=4.0),
    Adapter("lora_saved_tied", "gqa_tied",
            {"r": 2, "lora_alpha": 4, "target_modules": ["up_proj"], "ensure_weight_tying": True,
             "modules_to_save": ["embed_tokens"]}, lora_plus=4.0),
]


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def write_config(case: Case, directory: Path) -> None:
    """Writes config.json as the named major version of transformers does."""
    if case.transformers4:
        write_json(directory / "config.json", {
            "architectures": ["LlamaForCausalLM"], "attention_bias": False, "hidden_act": "silu",
            "initializer_range": 0.02, "mlp_bias": False, "model_type": "llama",
            "pretraining_tp": 1, "torch_dtype": "float32", "transformers_version": "4.46.0",
            "use_cache": True,
            **case.config})
        return
    config = AutoConfig.for_model(case.model_type, **case.config)
    name = {"smollm3": "SmolLM3"}.get(case.model_type, case.model_type.capitalize())
    config.architectures = [name + "ForCausalLM"]
    config.dtype = torch.float32
    config.save_pretrained(directory)


def random_weights(model: torch.nn.Module, seed: int) -> dict[str, torch.Tensor]:
    """f32 weights that make every gradient count: activations near 1, norms away from 1."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if name.endswith("norm.weight"):
            value = 1.0 + 0.2 * noise
        elif "embed_tokens" in name:
            value = 0.4 * noise
        elif name.endswith(".bias"):
            value = 0.5 * noise
        else:
            value = noise * 1.2 / math.sqrt(parameter.shape[1])
        weights[name] = value.to(torch.float32)
    return weights


def random_batch(case: Case) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 + case.seed)
    total = sum(case.lengths)
    ids = torch.randint(0, case.config["vocab_size"], (total,), generator=generator)
    targets = torch.full((total,), -1, dtype=torch.int64)
    positions = []
    begin = 0
    for length in case.lengths:
        first_answer = max(1, int(length * case.prompt_share))
        # The token at t predicts t+1 of its own sequence; the last predicts nothing.
        end = begin + length
        targets[begin + first_answer - 1:end - 1] = ids[begin + first_answer:end]
        positions += range(length)
        begin = end
    ends = torch.tensor([0] + case.lengths).cumsum(0)
    return {"ids": ids, "targets": targets, "positions": torch.tensor(positions),
            "cu_seqlens": ends}


def forward(model: torch.nn.Module,
            batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [T, vocab] and mean negative log-likelihood of the targets, a sequence at a time."""
    ends = batch["cu_seqlens"].tolist()
    logits = torch.cat([
        model(input_ids=batch["ids"][None, begin:end], use_cache=False).logits[0]
        for begin, end in zip(ends, ends[1:])])
    loss = torch.nn.functional.cross_entropy(logits, batch["targets"], ignore_index=-1)
    return logits, loss


def train(model: torch.nn.Module, batch: dict[str, torch.Tensor],
          weight_decay: float = WEIGHT_DECAY,
          optimizer: torch.optim.Optimizer | None = None) -> dict[str, torch.Tensor]:
    """Ten AdamW steps on the same batch; the first has learning rate 0, as warm-up begins there."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE,
                                               betas=(0.9, 0.999), eps=1e-8,
                                               weight_decay=weight_decay)
    schedule = get_cosine_schedule_with_warmup(optimizer, WARMUP_STEPS, STEPS)
    losses, norms, rates = [], [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        _, loss = forward(model, batch)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM).item())
        rates.append(optimizer.param_groups[0]["lr"])
        losses.append(loss.item())
        optimizer.step()
        schedule.step()
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in
            [("losses", losses), ("grad_norms", norms), ("learning_rates", rates)]}


def as_stored(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: t.detach().to(torch.float32 if t.is_floating_point() else torch.int32)
            .clone().contiguous() for name, t in tensors.items()}


def relative_error(value: torch.Tensor, truth: torch.Tensor) -> float:
    return ((value.double() - truth.double()).abs().max() / truth.double().abs().max()).item()


def gradients(model: torch.nn.Module, batch: dict[str, torch.Tensor], rename=lambda name: name):
    model.zero_grad()
    logits, loss = forward(model, batch)
    loss.backward()
    grads = {f"grad.{rename(n)}": p.grad.clone()
             for n, p in model.named_parameters() if p.requires_grad}
    return {"logits": logits.detach(), "loss": loss.detach()[None], **grads}


def rounding_of_f32(directory: Path, batch: dict[str, torch.Tensor], truth: dict[str, torch.Tensor],
                    adapted=lambda model: model, rename=lambda name: name) -> str:
    """The error of the same code in plain f32: what the tests' tolerances must allow."""
    model = adapted(AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                                         attn_implementation="eager"))
    plain = gradients(model, batch, rename)
    logits = relative_error(plain["logits"], truth["logits"])
    worst = max(relative_error(plain[n], truth[n]) for n in truth if n.startswith("grad."))
    if logits > 5e-6 or worst > 5e-5:
        raise SystemExit(f"{directory.name}: too sensitive, f32 is {logits:.1e} / {worst:.1e} off")
    return f"plain f32: logits {logits:.1e}, worst gradient {worst:.1e}"


def double_model(directory: Path) -> torch.nn.Module:
    """A model of the directory's config in f64 (rotary frequencies too), weights not yet loaded."""
    config = AutoConfig.from_pretrained(directory)
    config._attn_implementation = "eager"
    config.dtype = torch.float64
    torch.set_default_dtype(torch.float64)
    with DoublePrecision():
        model = AutoModelForCausalLM.from_config(config).double()
    torch.set_default_dtype(torch.float32)
    return model


def load_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    # Tied models: lm_head.weight is absent from the file and follows embed_tokens.
    model.load_state_dict(weights, strict=False)
    model.tie_weights()


def write_case(case: Case, root: Path) -> None:
    directory = root / case.name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    write_config(case, directory)
    batch = random_batch(case)
    model = double_model(directory)
    weights = random_weights(model, case.seed)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    load_weights(model, weights)
    with DoublePrecision():
        golden = {**batch, **gradients(model, batch)}
        golden |= train(model, batch)
        golden |= {f"final.{n}": p for n, p in model.named_parameters()}
    save_file(as_stored(golden), directory / "golden.safetensors")
    report(directory, rounding_of_f32(directory, batch, golden))


def write_adapter(adapter: Adapter, root: Path) -> None:
    # Imported here: the other cases need no PEFT.
    from peft import LoraConfig, PeftModel, get_peft_model
    from peft.optimizers import create_loraplus_optimizer

    case = next(c for c in CASES if c.name == adapter.case)
    directory = root / adapter.name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    batch = random_batch(case)

    base = AutoModelForCausalLM.from_pretrained(root / case.name, dtype=torch.float32)
    base.config._name_or_path = base.name_or_path = f"tests/golden/{case.name}"
    adapted = get_peft_model(base, LoraConfig(lora_dropout=0.0, bias="none",
                                              task_type="CAUSAL_LM", **adapter.config))
    generator = torch.Generator().manual_seed(77)
    with torch.no_grad():
        for name, parameter in sorted(adapted.named_parameters()):
            if not parameter.requires_grad:
                continue
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if ".lora_A" in name or ".lora_B" in name:
                parameter.copy_((noise * 0.7 / math.sqrt(parameter.shape[1])).float())
            else:
                parameter.mul_((1.0 + 0.2 * noise).float())
    adapted.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)
    # PEFT keeps the targets in a set, whose order changes from run to run.
    config = json.loads((directory / "adapter_config.json").read_text())
    if isinstance(config["target_modules"], list):
        config["target_modules"] = sorted(config["target_modules"])
    write_json(directory / "adapter_config.json", config)

    def rename(name: str) -> str:
        return (name.replace(".lora_magnitude_vector.default.weight", ".lora_magnitude_vector")
                .replace(".modules_to_save.default.weight", ".weight")
                .replace(".default.weight", ".weight"))

    def with_adapter(model: torch.nn.Module) -> torch.nn.Module:
        return PeftModel.from_pretrained(model, directory, is_trainable=True,
                                         autocast_adapter_dtype=False)

    model = double_model(root / case.name)
    load_weights(model, load_file(root / case.name / "model.safetensors"))
    model = with_adapter(model).double()
    with DoublePrecision():
        golden = {**batch, **gradients(model, batch, rename)}
    saved = load_file(directory / "adapter_model.safetensors")
    named = {n.removeprefix("grad.") for n in golden if n.startswith("grad.")}
    if adapter.config.get("ensure_weight_tying"):
        named.add("base_model.model.lm_head.weight")  # written twice
    if named != set(saved):
        raise SystemExit(f"gradients and adapter differ in names: {sorted(named ^ set(saved))[:4]}")
    base_dir = root / case.name
    remark = rounding_of_f32(base_dir, batch, golden, with_adapter, rename)
    if adapter.lora_plus is not None:
        optimizer = create_loraplus_optimizer(
            model, torch.optim.AdamW, lr=LEARNING_RATE, loraplus_lr_ratio=adapter.lora_plus,
            betas=(0.9, 0.999), eps=1e-8)
        with DoublePrecision():
            golden |= train(model, batch, optimizer=optimizer)
        golden |= {f"final.{rename(n)}": p for n, p in model.named_parameters() if p.requires_grad}
    save_file(as_stored(golden), directory / "golden.safetensors")
    report(directory, remark)


def report(directory: Path, remark: str) -> None:
    size = sum(f.stat().st_size for f in directory.iterdir())
    print(f"{directory.name:24} {size / 1000:6.0f} kB   {remark}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the golden files of the C++ tests.")
    parser.add_argument("--output", type=Path,
                        default=Path(__file__).resolve().parent.parent / "tests" / "golden")
    output = parser.parse_args().output
    # One thread: sums in one order, so the same bytes every time.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers_logging.disable_progress_bar()
    for case in CASES:
        write_case(case, output)
    for adapter in ADAPTERS:
        write_adapter(adapter, output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
