#!/usr/bin/env python3
"""PyTorch's attention on the GPU, for the shapes of `device_bench attention`: one JSON object a line.

    torch_attention.py [TOKENS]

Sequences are equally long, so that none has to be packed: what SDPA is fastest at. Ends with 4, and
says why, where there is no PyTorch or none for this GPU.
"""

import json
import sys

HEADS = ((64, 14, 2), (128, 32, 8), (256, 8, 4))  # of each size: queries', keys' and values'
LENGTHS = (1024, 2048, 8192)


def median_seconds(torch, body):
    def once():
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        body()
        end.record()
        end.synchronize()
        return 1e-3 * begin.elapsed_time(end)

    once()
    runs = min(50, max(3, round(0.1 / max(once(), 1e-6))))
    return sorted(once() for _ in range(runs))[runs // 2]


def measure(torch, backend, tokens, dim, heads, kv_heads, length):
    sequences = tokens // length

    def values(count):
        return torch.randn(sequences, count, length, dim, device="cuda", dtype=torch.bfloat16,
                           requires_grad=True)

    q, k, v, gradient = values(heads), values(kv_heads), values(kv_heads), values(heads).detach()
    product = tokens * length * heads * dim

    def forward():
        with torch.nn.attention.sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                                    enable_gqa=True)

    out = forward()
    for what, operations, body in (
            ("forward", 2 * product, forward),
            ("backward", 5 * product,
             lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True))):
        seconds = median_seconds(torch, body)
        print(json.dumps({
            "bench": "torch attention", "backend": backend.name,
            "name": f"{what}, {heads} heads of {dim}, {sequences} x {length}",
            "microseconds": 1e6 * seconds, "TFLOP/s": 1e-12 * operations / seconds}), flush=True)


def main():
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 16384
    try:
        import torch
    except ImportError as error:
        print(error, file=sys.stderr)
        return 4
    if not torch.cuda.is_available():
        print("this PyTorch finds no GPU", file=sys.stderr)
        return 4
    backends = torch.nn.attention.SDPBackend
    for shape in HEADS:
        for length in LENGTHS:
            for backend in (backends.FLASH_ATTENTION, backends.CUDNN_ATTENTION):
                try:
                    if length <= tokens:
                        measure(torch, backend, tokens, *shape, length)
                except RuntimeError as error:
                    print(f"{backend.name}, heads of {shape[0]}: {str(error).splitlines()[0]}",
                          file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
