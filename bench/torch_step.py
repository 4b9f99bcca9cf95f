#!/usr/bin/env python3
"""The training step that bench/step_bench measures, in PyTorch and transformers.

    torch_step.py [CONFIG_JSON] [--device cpu|cuda] [--mode eager|compiled|blocks]
                  [--product f32|bf16] [--storage f32|bf16] [--adamw fused|foreach|8bit]
                  [--checkpointing] [--sequence_len 512] [--micro_batch_size 4] [--threads 2]
                  [--steps 5] [--clock wall|cpu] [--json]

A model of that shape, by default SmolLM2-135M's, with random weights, all parameters trained by
AdamW, 4 x 512 tokens that are all targets, attention by SDPA, fused AdamW, clipping. bf16 is
autocast over weights in f32; `--storage bf16` has weights, gradients, AdamW's moments and products
in bf16 instead. 8bit is bitsandbytes' AdamW8bit. `compiled` is torch.compile on the whole model,
forward and backward: the fastest that PyTorch has. `blocks` compiles one block for all of them, and
the loss: nearly as fast, and many times as quick to compile. The first step, which compiles, is not
measured. Compiled code has the loss as its only result, and attention without the mask that
transformers makes of every batch while it compiles: these would cost it a gradient of all logits,
and a slower kernel. Peak memory on a CPU is the process's own (VmHWM).

On a GPU: f32 products are TF32, and the clock is read when the GPU has done all it was given. Peak
memory is what PyTorch's allocator has had of the GPU at once, weights and optimizer included;
the context (about half a GiB) is not. Ends with 3, and {"error": ...}, where that does not fit.
"""

import argparse
import gc
import json
import sys
import time
import warnings

import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

warnings.filterwarnings("ignore")

SMOLLM2 = {
    "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
    "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "max_position_embeddings": 8192,
    "tie_word_embeddings": True}

# SDPA for which transformers makes no mask: causal all the same.
AttentionInterface.register("sdpa_without_mask", sdpa_attention_forward)


def step_parser():
    """The options that every such script has."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--mode", choices=("eager", "compiled", "blocks"), default="compiled")
    parser.add_argument("--product", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--sequence_len", type=int, default=512)
    parser.add_argument("--micro_batch_size", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall",
                        help="cpu: processor time shared out over the threads")
    parser.add_argument("--json", action="store_true")
    return parser


def prepare(options):
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    if options.device == "cuda":
        torch.set_float32_matmul_precision("high")


def make_config(options):
    shape = SMOLLM2
    if options.config:
        with open(options.config, encoding="utf-8") as file:
            shape = json.load(file)
    return AutoConfig.for_model(**shape, attn_implementation="sdpa_without_mask", use_cache=False)


def make_model(config, options, dtype):
    """With random weights, on the device from the start."""
    with torch.device(options.device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def loss_function(model, options):
    """The loss of a micro-batch and its labels, computed as --checkpointing and --mode say."""
    model.train()
    if options.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def loss(ids, labels):
        return model(input_ids=ids, labels=labels).loss

    if options.mode == "compiled":
        return torch.compile(loss)
    if options.mode == "blocks":
        whole = model.get_base_model() if hasattr(model, "get_base_model") else model
        for block in whole.model.layers:
            block.compile()
        whole.loss_function = torch.compile(whole.loss_function)
    return loss


def random_batch(vocab_size, options):
    # transformers shifts labels by itself: a sequence's last token has no target. Within 0.2 %.
    shape = (options.micro_batch_size, options.sequence_len)
    return [torch.randint(0, vocab_size, shape).to(options.device) for _ in range(2)]


def restart_peak(options):
    """From here on peak_bytes() counts what is there now and what comes."""
    gc.collect()
    if options.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    else:
        with open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
            file.write("5")  # VmHWM begins anew


def peak_bytes(options):
    if options.device == "cuda":
        return torch.cuda.max_memory_reserved()
    with open("/proc/self/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def step_seconds(step, options):
    """The seconds of each of `options.steps` steps after a first one, the fastest first."""
    def now():
        if options.device == "cuda":
            torch.cuda.synchronize()
        return time.process_time() / options.threads if options.clock == "cpu" else time.monotonic()

    times = []
    for _ in range(options.steps + 1):
        begin = now()
        step()
        times.append(now() - begin)
    return sorted(times[1:])


def measure(step, options):
    """What every such script says of its step."""
    times = step_seconds(step, options)
    tokens = options.micro_batch_size * options.sequence_len
    result = {
        "tokens_per_second": tokens / times[0],
        "median_tokens_per_second": tokens / times[len(times) // 2],
        "peak_bytes": peak_bytes(options),
        "torch": torch.__version__,
    }
    if options.device == "cuda":
        result["device"] = torch.cuda.get_device_name()
    return result


def show(result, setting, options):
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{setting}: {result['tokens_per_second']:.1f} tokens/s "
              f"(median {result['median_tokens_per_second']:.1f}), "
              f"peak {result['peak_bytes'] / 2**20:.0f} MiB")


def exit_status(main):
    try:
        main()
    except torch.OutOfMemoryError as error:
        print(json.dumps({"error": str(error).split(" GPU ")[0]}))
        return 3
    return 0


def make_optimizer(model, options):
    settings = {"lr": 1e-5, "weight_decay": 0.01}
    if options.adamw == "8bit":
        import bitsandbytes
        return bitsandbytes.optim.AdamW8bit(model.parameters(), **settings)
    return torch.optim.AdamW(model.parameters(), **settings, **{options.adamw: True})


def main():
    parser = step_parser()
    parser.add_argument("config", nargs="?")
    parser.add_argument("--storage", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--adamw", choices=("fused", "foreach", "8bit"), default="fused")
    options = parser.parse_args()
    prepare(options)
    bf16_storage = options.storage == "bf16"
    if bf16_storage:
        options.product = "bf16"
    model = make_model(make_config(options), options,
                       torch.bfloat16 if bf16_storage else torch.float32)
    optimizer = make_optimizer(model, options)
    loss_of = loss_function(model, options)
    ids, labels = random_batch(model.config.vocab_size, options)
    autocast = options.product == "bf16" and not bf16_storage

    def step():
        with torch.autocast(options.device, torch.bfloat16, enabled=autocast):
            loss = loss_of(ids, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    result = {
        "bench": "torch_step",
        "mode": options.mode,
        "product": options.product,
        **measure(step, options),
    }
    show(result, f"torch {torch.__version__}, {options.mode}, {options.product}"
                 f"{' storage' if bf16_storage else ''}, AdamW {options.adamw}"
                 f"{', checkpointing' if options.checkpointing else ''}", options)


if __name__ == "__main__":
    sys.exit(exit_status(main))
