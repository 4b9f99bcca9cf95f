#!/usr/bin/env python3
"""The training step that bench/step_bench measures, in PyTorch and transformers.

    torch_step.py [--product f32|bf16] [--threads 2] [--steps 5] [--json]

SmolLM2-135M's shape with random weights, all parameters trained by AdamW, 4 x 512 tokens that are
all targets, attention by SDPA. bf16 is autocast. One step is not measured. Of torch's AdamW forms
the fastest on the machine is taken. Peak memory is the process's own (VmHWM).
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


def make_model():
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, head_dim=64, rms_norm_eps=1e-5,
        rope_theta=100000.0, max_position_embeddings=8192, tie_word_embeddings=True,
        attn_implementation="sdpa", use_cache=False)
    return LlamaForCausalLM(config).float().train()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--product", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--adamw", choices=("fused", "foreach"), default="fused")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01,
                                  **{options.adamw: True})
    ids = torch.randint(0, 49152, (4, 512))
    # transformers shifts labels by itself: 511 of 512 tokens have a target. Within 0.2 %.
    labels = torch.randint(0, 49152, (4, 512))
    times, cpu = [], []
    for _ in range(options.steps + 1):
        begin, cpu_begin = time.monotonic(), time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=options.product == "bf16"):
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.monotonic() - begin)
        cpu.append((time.process_time() - cpu_begin) / options.threads)
    times, cpu = sorted(times[1:]), sorted(cpu[1:])
    tokens = ids.numel()
    result = {
        "bench": "torch_step",
        "product": options.product,
        "tokens_per_second": tokens / times[0],
        "median_tokens_per_second": tokens / times[len(times) // 2],
        "cpu_tokens_per_second": tokens / cpu[0],
        "peak_resident_bytes": peak_resident_bytes(),
        "torch": torch.__version__,
    }
    if options.json:
        print(json.dumps(result))
    else:
        print(f"torch {torch.__version__}, {options.product}, AdamW {options.adamw}: "
              f"{result['tokens_per_second']:.1f} tokens/s "
              f"(median {result['median_tokens_per_second']:.1f}; "
              f"{result['cpu_tokens_per_second']:.1f} by processor time), "
              f"peak {result['peak_resident_bytes'] / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
