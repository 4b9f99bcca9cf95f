#!/usr/bin/env python3
"""The training step that bench/step_bench measures, in PyTorch and transformers.

    torch_step.py [--mode eager|compiled] [--product f32|bf16] [--threads 2] [--steps 5]
                  [--clock wall|cpu] [--json]

SmolLM2-135M's shape with random weights, all parameters trained by AdamW, 4 x 512 tokens that are
all targets, attention by SDPA, fused AdamW, clipping. bf16 is autocast. `compiled` is torch.compile
on the whole model, forward and backward: the fastest that PyTorch has on a CPU. The first step,
which compiles, is not measured. Peak memory is the process's own (VmHWM).
"""

import argparse
import json
import time
import warnings

import torch
from transformers import LlamaConfig, LlamaForCausalLM

warnings.filterwarnings("ignore")


def peak_resident_bytes():
    with open("/proc/self/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def step_seconds(step, options):
    """The seconds of each of `options.steps` steps after a first one, the fastest first."""
    def now():
        return time.process_time() / options.threads if options.clock == "cpu" else time.monotonic()

    times = []
    for _ in range(options.steps + 1):
        begin = now()
        step()
        times.append(now() - begin)
    return sorted(times[1:])


def make_model():
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, head_dim=64, rms_norm_eps=1e-5,
        rope_theta=100000.0, max_position_embeddings=8192, tie_word_embeddings=True,
        attn_implementation="sdpa", use_cache=False)
    return LlamaForCausalLM(config).float().train()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=("eager", "compiled"), default="compiled")
    parser.add_argument("--product", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--adamw", choices=("fused", "foreach"), default="fused")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall",
                        help="cpu: processor time shared out over the threads")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01,
                                  **{options.adamw: True})
    forward = torch.compile(model) if options.mode == "compiled" else model
    ids = torch.randint(0, 49152, (4, 512))
    # transformers shifts labels by itself: 511 of 512 tokens have a target. Within 0.2 %.
    labels = torch.randint(0, 49152, (4, 512))

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=options.product == "bf16"):
            loss = forward(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    times = step_seconds(step, options)
    tokens = ids.numel()
    result = {
        "bench": "torch_step",
        "mode": options.mode,
        "product": options.product,
        "tokens_per_second": tokens / times[0],
        "median_tokens_per_second": tokens / times[len(times) // 2],
        "peak_bytes": peak_resident_bytes(),
        "torch": torch.__version__,
    }
    if options.json:
        print(json.dumps(result))
    else:
        print(f"torch {torch.__version__}, {options.mode}, {options.product}, AdamW {options.adamw}: "
              f"{result['tokens_per_second']:.1f} tokens/s "
              f"(median {result['median_tokens_per_second']:.1f}), "
              f"peak {result['peak_bytes'] / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
