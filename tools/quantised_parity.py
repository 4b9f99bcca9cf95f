"""Compares how the program reads quantised models with the packages that invented their layouts.

Each package packs a random Llama's linears by its own code and decodes them again. The program then
computes from the packed files, and from a plain model of the decoded values: the logits must agree
in every bit. Called by tools/parity.py.
"""

import importlib.util
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import quantised_models


def _module(name: str, path: Path):
    """Loads a single module of a package that is not installed."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Producers:
    """Quantisers of the layouts' own packages, with the signatures of those in quantised_models."""

    def __init__(self, place: Path) -> None:
        self.gptq_linear = _module(
            "qlinear_cuda_old", place / "auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py").QuantLinear
        self.awq = _module("packing_utils", place / "awq/utils/packing_utils.py")

    def gptq(self, weight, rng, bits=4, group_size=128, symmetric=True):
        rows, columns = weight.shape
        size = columns if group_size == -1 else group_size
        group_of = quantised_models.groups_of(columns, group_size)
        scales, zeros, codes = quantised_models.rounded(weight, group_of, bits, symmetric)
        linear = torch.nn.Linear(columns, rows, bias=False)
        linear.weight.data = torch.from_numpy(
            quantised_models.decoded(scales, zeros, codes, group_of)).half()
        layer = self.gptq_linear(bits, size, columns, rows, bias=False)
        layer.pack(linear, torch.from_numpy(scales), torch.from_numpy(zeros).half(), None)
        decoded = layer(torch.eye(columns).half())  # multiplying by the identity is exact
        tensors = {part: getattr(layer, part) for part in ("qweight", "qzeros", "scales", "g_idx")}
        return tensors, decoded.T.float().numpy()

    def awq_gemm(self, weight, rng, group_size=128):
        tensors, _ = quantised_models.awq(weight, rng, group_size)
        parts = {name: torch.from_numpy(np.ascontiguousarray(part)) for name, part in tensors.items()}
        decoded = self.awq.dequantize_gemm(parts["qweight"], parts["qzeros"], parts["scales"], 4,
                                           group_size)
        return tensors, decoded.T.float().numpy()

    @staticmethod
    def compressed(weight, rng, bits=4, group_size=32, symmetric=True, dtype=torch.bfloat16,
                   packed=True):
        from compressed_tensors.compressors.naive_quantized.base import IntQuantizationCompressor
        from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
        compressor = PackedQuantizationCompressor if packed else IntQuantizationCompressor
        group_of = quantised_models.groups_of(weight.shape[1], group_size)
        scales, zeros, _ = quantised_models.rounded(weight, group_of, bits, symmetric)
        grouping = {"strategy": "channel"} if group_size == -1 else {
            "strategy": "group", "group_size": group_size}
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(
            num_bits=bits, symmetric=symmetric, **grouping))
        state = {"weight": torch.from_numpy(weight).to(dtype),
                 "weight_scale": torch.from_numpy(scales).to(dtype),
                 "weight_zero_point": torch.from_numpy(zeros - 2**(bits - 1)).to(torch.int8)}
        state = compressor.compress(state, scheme)
        return state, compressor.decompress(dict(state), scheme)["weight"].float().numpy()

    @staticmethod
    def floats(weight, rng, strategy="channel", block=None, dtype=torch.bfloat16, groups=None):
        from compressed_tensors.compressors.naive_quantized.base import FloatQuantizationCompressor
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
        extents = {"channel": (1, -1), "tensor": (-1, -1), "group": (1, groups), "block": block}[strategy]
        scales = quantised_models.floats(weight, rng, extents)[0]["weight_scale"].to(dtype)
        if strategy == "tensor":
            scales = scales.reshape(1)
        more = {"block": {"block_structure": block}, "group": {"group_size": groups}}.get(strategy, {})
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(
            num_bits=8, type="float", strategy=strategy, **more))
        state = FloatQuantizationCompressor.compress(
            {"weight": torch.from_numpy(weight).to(dtype), "weight_scale": scales}, scheme)
        decoded = FloatQuantizationCompressor.decompress(dict(state), scheme)["weight"]
        return state, decoded.float().numpy()

    @staticmethod
    def fp8(weight, rng, block):
        from transformers.integrations.finegrained_fp8 import Fp8Dequantize
        tensors, _ = quantised_models.floats(weight, rng, block, "f32", "weight_scale_inv")
        decoded = Fp8Dequantize(None)._dequantize_one(tensors["weight"], tensors["weight_scale_inv"])
        return tensors, decoded.float().numpy()

    @staticmethod
    def fp4(weight, rng):
        import bitsandbytes.functional as bnb
        codes, state = bnb.quantize_4bit(torch.from_numpy(weight), blocksize=64, quant_type="fp4")
        tensors = {"weight": codes} | {f"weight.{key}": value
                                       for key, value in state.as_dict(packed=True).items()}
        return tensors, bnb.dequantize_4bit(codes, state).numpy()

    @staticmethod
    def llm_int8(weight, rng):
        import bitsandbytes.functional as bnb
        codes, absmax, _ = bnb.int8_vectorwise_quant(torch.from_numpy(weight).half())
        decoded = bnb.int8_vectorwise_dequant(codes, absmax)
        return {"weight": codes, "SCB": absmax}, decoded.numpy()


VARIANTS = {
    "gptq 4": ("gptq", "gptq", {"group_size": 32}),
    "gptq 4 asymmetric": ("gptq", "gptq", {"group_size": 32, "symmetric": False}),
    "gptq 3": ("gptq", "gptq", {"bits": 3, "group_size": 32, "symmetric": False}),
    "gptq 2": ("gptq", "gptq", {"bits": 2, "group_size": 64}),
    "gptq 8 whole column": ("gptq", "gptq", {"bits": 8, "group_size": -1}),
    "awq": ("awq_gemm", "awq", {"group_size": 32}),
    "pack-quantized 4": ("compressed", "packed", {}),
    "pack-quantized 4 asymmetric": ("compressed", "packed", {"symmetric": False}),
    "pack-quantized 3 f16": ("compressed", "packed", {"bits": 3, "dtype": torch.float16}),
    "pack-quantized 8 channel": ("compressed", "packed", {"bits": 8, "group_size": -1}),
    "int-quantized": ("compressed", "int", {"bits": 8, "group_size": -1, "packed": False}),
    "int-quantized groups": ("compressed", "int", {"bits": 8, "packed": False, "symmetric": False}),
    "float-quantized": ("floats", "float", {}),
    "float-quantized tensor": ("floats", "float", {"strategy": "tensor", "dtype": torch.float32}),
    "float-quantized groups": ("floats", "float", {"strategy": "group", "groups": 32}),
    "float-quantized blocks": ("floats", "float", {"strategy": "block", "block": [48, 40]}),
    "fp8 of transformers": ("fp8", "fp8", {"block": [32, 64]}),
    "bitsandbytes FP4": ("fp4", "fp4", {}),
    "LLM.int8": ("llm_int8", "llm_int8", {}),
}


def write_source(source: Path, seed: int) -> Path:
    """A small random Llama, whose matrices every layout can hold."""
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=288, hidden_size=64, intermediate_size=192, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False,
                         max_position_embeddings=128)
    LlamaForCausalLM(config).save_pretrained(source)
    return source


def check_quantised(report, program, work: Path, seed: int, place: Path) -> None:
    source = write_source(work / "quantised_source", seed)
    data = work / "quantised.txt"
    data.write_text("A jackscrew lifts a house with one hand, a turn at a time.")
    producers = Producers(place)
    for number, (name, (function, layout, options)) in enumerate(VARIANTS.items()):
        packed, plain = work / f"packed_{number}", work / f"plain_{number}"
        quantised_models.write_quantised(source, packed, plain, layout, seed, head=False,
                                         quantiser=getattr(producers, function), **options)
        logits = []
        for model in (packed, plain):
            output = work / f"{model.name}.safetensors"
            program("logits", f"model={model}", f"data={data}", "tokenizer=bytes", "product=f32",
                    f"output={output}")
            logits.append(quantised_models.load_file(output))
        different = sum(int((logits[0][key] != logits[1][key]).sum()) for key in logits[0])
        report.line(f"{name}: different logits", different, 0)
