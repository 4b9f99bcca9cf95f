#!/usr/bin/env python3
"""A QLoRA step in transformers, PEFT and bitsandbytes, for bench/step_bench beside it.

    peft_step.py CONFIG_JSON [--product f32|bf16] [--checkpointing] [--sequence_len 512]
                 [--micro_batch_size 1] [--rank 16] [--threads 2] [--steps 3] [--clock wall|cpu] [--json]

A model of that shape with random weights: the linears of its blocks in NF4 by bitsandbytes' CPU
backend, LoRA on all of them by PEFT, AdamW on the adapters, attention by SDPA, all tokens targets.
bf16: weights are brought to bf16, within autocast. --checkpointing recomputes blocks, as PEFT's
prepare_model_for_kbit_training does by default. The first step is not measured. Peak memory is the
process's own (VmHWM) from the moment when the model is ready.

The same step here: step_bench model=CONFIG_JSON init=random tokenizer=bytes method=qlora
lora_rank=16 sequence_len=512 micro_batch_size=1 product=bf16 threads=2
"""

import argparse
import gc
import json
import warnings

import bitsandbytes
import peft
import torch
from torch_step import peak_resident_bytes, step_seconds
from transformers import LlamaConfig, LlamaForCausalLM

warnings.filterwarnings("ignore")


def in_nf4(linear, dtype):
    weight = bitsandbytes.nn.Params4bit(linear.weight.data, requires_grad=False, quant_type="nf4")
    out = bitsandbytes.nn.Linear4bit(linear.in_features, linear.out_features, bias=False,
                                     compute_dtype=dtype, quant_type="nf4")
    out.weight = weight
    return out.to("cpu")  # which quantises


def make_model(options, dtype):
    with open(options.config, encoding="utf-8") as file:
        config = LlamaConfig(**json.load(file), attn_implementation="sdpa", use_cache=False)
    model = LlamaForCausalLM(config).to(dtype)
    for block in model.model.layers:
        for part in (block.self_attn, block.mlp):
            for name, child in list(part.named_children()):
                if isinstance(child, torch.nn.Linear):
                    setattr(part, name, in_nf4(child, dtype))
    for parameter in model.parameters():
        parameter.requires_grad = False
    if options.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return peft.get_peft_model(
        model, peft.LoraConfig(r=options.rank, lora_alpha=2 * options.rank, target_modules=targets,
                               lora_dropout=0.0)).train()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("--product", choices=("f32", "bf16"), default="bf16")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--sequence_len", type=int, default=512)
    parser.add_argument("--micro_batch_size", type=int, default=1)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall",
                        help="cpu: processor time shared out over the threads")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    dtype = torch.bfloat16 if options.product == "bf16" else torch.float32
    model = make_model(options, dtype)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5,
                                  fused=True)
    shape = (options.micro_batch_size, options.sequence_len)
    ids = torch.randint(0, model.config.vocab_size, shape)
    labels = torch.randint(0, model.config.vocab_size, shape)
    gc.collect()
    with open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
        file.write("5")  # VmHWM begins anew

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=options.product == "bf16"):
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    times = step_seconds(step, options)
    result = {
        "bench": "peft_step",
        "product": options.product,
        "checkpointing": options.checkpointing,
        "tokens_per_second": ids.numel() / times[0],
        "median_tokens_per_second": ids.numel() / times[len(times) // 2],
        "peak_bytes": peak_resident_bytes(),
        "torch": torch.__version__,
        "peft": peft.__version__,
        "bitsandbytes": bitsandbytes.__version__,
    }
    if options.json:
        print(json.dumps(result))
    else:
        print(f"peft {peft.__version__}, bitsandbytes {bitsandbytes.__version__}, {options.product}"
              f"{', checkpointing' if options.checkpointing else ''}: "
              f"{result['tokens_per_second']:.1f} tokens/s "
              f"(median {result['median_tokens_per_second']:.1f}), "
              f"peak {result['peak_bytes'] / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
