#!/usr/bin/env python3
"""A QLoRA step in transformers, PEFT and bitsandbytes, for bench/step_bench beside it.

    peft_step.py CONFIG_JSON [--device cpu|cuda] [--mode eager|compiled|blocks]
                 [--product f32|bf16] [--checkpointing] [--sequence_len 512]
                 [--micro_batch_size 1] [--rank 16] [--threads 2] [--steps 3]
                 [--clock wall|cpu] [--json]

A model of that shape with random weights: the linears of its blocks in NF4 by bitsandbytes,
quantised on the device block by block, LoRA on all of them by PEFT, fused AdamW on the adapters,
attention by SDPA, all tokens targets. bf16: other weights are bf16, adapters f32, within autocast.
--checkpointing recomputes blocks, as PEFT's prepare_model_for_kbit_training does by default.
--mode and a GPU are as in torch_step.py. The first step is not measured. Peak memory is counted as
there, from the moment when the model is ready.

The same step here: step_bench model=CONFIG_JSON init=random tokenizer=bytes method=qlora
lora_rank=16 sequence_len=512 micro_batch_size=1 product=bf16 threads=2
"""

import sys

import bitsandbytes
import peft
import torch
from torch_step import (exit_status, loss_function, make_config, make_model, measure, prepare,
                        random_batch, restart_peak, show, step_parser)


def in_nf4(linear, dtype):
    out = bitsandbytes.nn.Linear4bit(linear.in_features, linear.out_features, bias=False,
                                     compute_dtype=dtype, quant_type="nf4", device="meta")
    out.weight = bitsandbytes.nn.Params4bit(linear.weight.data, requires_grad=False,
                                            quant_type="nf4")
    out.bias = linear.bias
    return out.to(linear.weight.device)  # which quantises


def make_nf4_model(options, dtype):
    """Is never whole in another format: made with one block, then given all of them one by one."""
    config = make_config(options)
    blocks = config.num_hidden_layers
    config.num_hidden_layers = 1
    model = make_model(config, options, dtype)
    model.config.num_hidden_layers = blocks
    block_class = type(model.model.layers[0])

    def make_block(index):
        with torch.device(options.device):
            block = block_class(model.config, index).to(dtype)
        for part in (block.self_attn, block.mlp):
            for name, child in list(part.named_children()):
                if isinstance(child, torch.nn.Linear):
                    setattr(part, name, in_nf4(child, dtype))
        return block

    model.model.layers = torch.nn.ModuleList(make_block(index) for index in range(blocks))
    for parameter in model.parameters():
        parameter.requires_grad = False
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return peft.get_peft_model(
        model, peft.LoraConfig(r=options.rank, lora_alpha=2 * options.rank, target_modules=targets,
                               lora_dropout=0.0))


def main():
    parser = step_parser()
    parser.add_argument("config")
    parser.add_argument("--rank", type=int, default=16)
    parser.set_defaults(mode="eager", product="bf16", micro_batch_size=1, steps=3)
    options = parser.parse_args()
    prepare(options)
    dtype = torch.bfloat16 if options.product == "bf16" else torch.float32
    model = make_nf4_model(options, dtype)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5,
                                  fused=True)
    loss_of = loss_function(model, options)
    ids, labels = random_batch(model.config.vocab_size, options)
    restart_peak(options)

    def step():
        with torch.autocast(options.device, torch.bfloat16, enabled=options.product == "bf16"):
            loss = loss_of(ids, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    result = {
        "bench": "peft_step",
        "product": options.product,
        "checkpointing": options.checkpointing,
        **measure(step, options),
        "peft": peft.__version__,
        "bitsandbytes": bitsandbytes.__version__,
    }
    show(result, f"peft {peft.__version__}, bitsandbytes {bitsandbytes.__version__}, "
                 f"{options.product}{', checkpointing' if options.checkpointing else ''}", options)


if __name__ == "__main__":
    sys.exit(exit_status(main))
