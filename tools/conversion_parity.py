"""Compares `merge` with PEFT's merge_and_unload, and files of `export` with the package gguf and transformers.

Fresh random models and adapters each time. Called by tools/parity.py.
"""

import ctypes
import json
import random
import subprocess
from functools import reduce
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import quants
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import golden
import quantised_models
from calibrated_parity import check_exl2, check_gptq
from parity_rig import worse
from quantised_parity import VARIANTS, Producers, write_source
from tiny_models import GGUF_ARCHITECTURES, TEXTS, interleaved, write_model

PROMPTS = ["The capital of France is", "Water boils at", "def factorial(n):\n"]
LINEARS = ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]
ADAPTERS = {
    "lora": dict(r=4, lora_alpha=8, target_modules=LINEARS),
    "rslora": dict(r=9, lora_alpha=6, target_modules=LINEARS, use_rslora=True),
    "patterns": dict(r=4, lora_alpha=8, target_modules=LINEARS,
                     rank_pattern={r".*layers\.0\..*": 2}, alpha_pattern={"v_proj": 32}),
    "dora": dict(r=4, lora_alpha=8, target_modules=LINEARS, use_dora=True),
    "saved": dict(r=4, lora_alpha=8, target_modules=LINEARS, modules_to_save=["lm_head"]),
}
# Types for which the package gguf has reference formulas, and types whose scales are searched.
SAME_BYTES = ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"]
SEARCHED = ["q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "q2_k", "q3_k_m", "q4_k_m", "q5_k_m"]
ARCHITECTURES = {
    "llama": dict(hidden=256, ffn=512, layers=2, heads=4, kv_heads=2, tied=True),
    "llama3": dict(hidden=64, ffn=96, layers=2, heads=4, kv_heads=1, tied=False,
                   rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
                                    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                    "original_max_position_embeddings": 8192}),
    "qwen2": dict(hidden=64, ffn=96, layers=2, heads=4, kv_heads=2, tied=True),
    "qwen3": dict(hidden=64, ffn=96, layers=2, heads=4, kv_heads=1, tied=False, head_dim=24),
    "smollm3": dict(hidden=64, ffn=96, layers=4, heads=4, kv_heads=2, tied=True, pad_token_id=0),
}


def write_adapter(base: Path, directory: Path, config: dict, seed: int) -> None:
    """Writes an adapter like a trained one: every factor, length and whole module differs from its start."""
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
                           LoraConfig(task_type="CAUSAL_LM", **config))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter += 0.2 * noise * parameter.abs().mean().clamp(min=0.1)
    model.save_pretrained(directory)


def largest_error(ours: Path, theirs: dict[str, torch.Tensor]) -> float:
    """The largest deviation over all weights, relative to the largest magnitude of its weight."""
    weights = load_file(ours / "model.safetensors")
    missing = set(theirs) - set(weights)
    if torch.equal(theirs["lm_head.weight"], theirs["model.embed_tokens.weight"]):
        missing -= {"lm_head.weight"}  # tied: a file has one of the two
    assert set(weights) <= set(theirs) and not missing, set(weights) ^ set(theirs)
    return reduce(worse, (((weights[name].double() - theirs[name].double()).abs().max()
                           / theirs[name].abs().max()).item() for name in weights))


def check_merge(report, program, work: Path, rng: random.Random) -> None:
    base = work / "merge_base"
    write_model(base, "merge_base", dict(hidden=64, ffn=96, layers=3, heads=4, kv_heads=2, tied=False),
                rng.randrange(2**31))

    def double() -> torch.nn.Module:
        return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)

    for name, config in ADAPTERS.items():
        adapter, output = work / f"adapter_{name}", work / f"merged_{name}"
        write_adapter(base, adapter, config, rng.randrange(2**31))
        program("merge", f"model={base}", f"adapter={adapter}", f"output_dir={output}", "storage=f32")
        merged = PeftModel.from_pretrained(double(), adapter, autocast_adapter_dtype=False)
        theirs = merged.double().merge_and_unload().state_dict()
        report.line(f"merge.{name}", largest_error(output, theirs), 1e-6)
    first, second, output = work / "adapter_lora", work / "adapter_rslora", work / "merged_both"
    program("merge", f"model={base}", f"adapter={first},{second}", "adapter_weight=0.7,0.3",
            f"output_dir={output}", "storage=f32")
    model = PeftModel.from_pretrained(double(), first, "a", autocast_adapter_dtype=False)
    model.load_adapter(second, "b", autocast_adapter_dtype=False)
    model.double().add_weighted_adapter(["a", "b"], [0.7, 0.3], "both", combination_type="cat")
    model.set_adapter("both")
    theirs = model.merge_and_unload(adapter_names=["both"]).state_dict()
    report.line("merge.both", largest_error(output, theirs), 1e-6)


def check_quantised_bases(report, program, work: Path, seed: int, place: Path) -> None:
    """Merging an adapter into any layout gives the same bytes as merging it into its decoded values."""
    source = write_source(work / "conversion_source", seed)
    adapter = work / "conversion_adapter"
    write_adapter(source, adapter, ADAPTERS["dora"], seed)
    producers = Producers(place)
    for number, (name, (function, layout, options)) in enumerate(VARIANTS.items()):
        packed, plain = work / f"base_{number}", work / f"plain_base_{number}"
        quantised_models.write_quantised(source, packed, plain, layout, seed, head=False,
                                         quantiser=getattr(producers, function), **options)
        merged = []
        for model in (packed, plain):
            output = work / f"merged_{model.name}"
            program("merge", f"model={model}", f"adapter={adapter}", f"output_dir={output}",
                    "storage=f32")
            merged.append(load_file(output / "model.safetensors"))
        different = sum(int((merged[0][key] != merged[1][key]).sum()) for key in merged[1])
        report.line(f"merge over {name}: different values", different, 0)


class LlamaCppRows:
    """llama.cpp's own encoders, without an importance matrix."""

    def __init__(self, python: Path):
        library = next(python.parent.parent.glob("lib/python3*/site-packages/xllamacpp/*.so"))
        self.encode = ctypes.PyDLL(str(library)).ggml_quantize_chunk
        self.encode.restype = ctypes.c_size_t
        self.encode.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3,
                                ctypes.c_void_p]

    def decoded(self, exact: np.ndarray, stored) -> np.ndarray:
        exact, encoded = np.ascontiguousarray(exact), np.zeros_like(stored.data)
        self.encode(int(stored.tensor_type), exact.ctypes.data, encoded.ctypes.data, 0, *exact.shape, None)
        return quants.dequantize(encoded, stored.tensor_type)


def check_gguf(report, program, work: Path, rng: random.Random, python: Path) -> None:
    rows = LlamaCppRows(python) if python.exists() else None
    for name, shape in ARCHITECTURES.items():
        directory = work / f"export_{name}"
        weights = write_model(directory, name, shape, rng.randrange(2**31))
        wide = name == "llama"  # 256 elements in a row
        for storage in [*SAME_BYTES, *SEARCHED] if wide else ["f32"]:
            path = work / f"{name}.{storage}.gguf"
            program("export", f"model={directory}", f"output={path}", f"storage={storage}")
            check_tensors(report, path, weights, shape, name, storage, rows)
        check_opened(report, program, work, directory, work / f"{name}.f32.gguf")


def check_tensors(report, path: Path, weights: dict, shape: dict, name: str, storage: str, rows) -> None:
    reader = gguf.GGUFReader(path)
    arch = GGUF_ARCHITECTURES.get(name, gguf.MODEL_ARCH.LLAMA)
    names = gguf.get_tensor_name_map(arch, shape["layers"])
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    different, ours, theirs = 0, 0.0, 0.0  # squared errors
    for key, weight in weights.items():
        stored = tensors.pop(names.get_name(key, try_suffixes=(".weight", ".bias")))
        for part, heads in (("q_proj.weight", "heads"), ("k_proj.weight", "kv_heads")):
            if not name.startswith("qwen") and key.endswith(part):
                weight = interleaved(weight, shape[heads])
        exact = weight.float().numpy()
        kind = stored.tensor_type.name.lower()
        if kind in SAME_BYTES:
            different += int((np.frombuffer(quants.quantize(exact, stored.tensor_type).tobytes(), np.uint8)
                              != np.frombuffer(stored.data.tobytes(), np.uint8)).sum())
        elif rows is not None:
            ours += float(((quants.dequantize(stored.data, stored.tensor_type) - exact)**2).sum())
            theirs += float(((rows.decoded(exact, stored) - exact)**2).sum())
    tensors.pop("rope_freqs.weight", None)
    report.line(f"gguf.{name}.{storage}: different bytes", different + len(tensors), 0)
    if theirs > 0:
        report.line(f"gguf.{name}.{storage}: squared error, of llama.cpp's", ours / theirs, 1)


def check_opened(report, program, work: Path, directory: Path, path: Path) -> None:
    """transformers opens the file: it gives the same logits as the directory, and the same ids."""
    name = path.name.removesuffix(".f32.gguf")
    # For other architectures it uses tokenizer patterns of its own and ignores rope_freqs.weight, and
    # qwen3's attention.key_length.
    if name.startswith("llama"):
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        own = AutoTokenizer.from_pretrained(directory)
        different = sum(own(text).input_ids != tokenizer(text).input_ids for text in TEXTS)
        report.line(f"gguf.{name}: texts with other ids", different, 0)
    if name in ("llama", "qwen2"):
        theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name,
                                                      dtype=torch.float32, attn_implementation="eager")
        ours = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                                    attn_implementation="eager")
        ids = torch.arange(40)[None]
        with torch.no_grad():
            a, b = (model.eval()(input_ids=ids).logits.double() for model in (ours, theirs))
        report.line(f"gguf.{name}: opened", golden.relative_error(b, a), 1e-6)
    data = work / "export.txt"
    data.write_text("\n".join(TEXTS))
    ids = [program.tokens(model, data) for model in (directory, path)]
    report.line(f"gguf.{name}: other ids of ours", ids[0] != ids[1], 0)
    same = [program.loss(data, f"model={model}") for model in (directory, path)]
    report.line(f"gguf.{name}: loss", abs(same[0] - same[1]), 0)


def check_nf4(report, program, work: Path, rng: random.Random) -> None:
    """transformers opens the directory: bitsandbytes decodes the values that the program does."""
    import bitsandbytes.functional as bnb

    directory, packed, decoded = (work / f"nf4_{name}" for name in ("source", "packed", "decoded"))
    # Widths are whole blocks: bitsandbytes decodes others differently from how it encodes them, see tools/parity.py.
    write_model(directory, "nf4", dict(hidden=64, ffn=128, layers=2, heads=4, kv_heads=2, tied=False),
                rng.randrange(2**31))
    program("export", f"model={directory}", f"output_dir={packed}", "storage=nf4")
    program("export", f"model={packed}", f"output_dir={decoded}", "storage=f32")
    values = load_file(decoded / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(packed, dtype=torch.float32)
    different, layers = 0, 0
    for name, parameter in model.named_parameters():
        state = getattr(parameter, "quant_state", None)
        layers += state is not None
        value = parameter.data if state is None else bnb.dequantize_4bit(parameter.data, state)
        different += int((value.float() != values[name]).sum())
    report.line("nf4: different values", different if layers else float("nan"), 0,
                f"{layers} layers in NF4")


def check_llama_cpp(report, program, work: Path, model: Path, python: Path) -> None:
    """llama.cpp opens exports of SmolLM2: compares ids of texts, greedy answers and their log-probabilities."""
    if not python.exists():
        print(f"skip llama.cpp: there is no {python} (script/setup --oracle makes it)", flush=True)
        return
    # Its KV cache is f16. Where weights are quantised, as in the file itself ("keep"), it rounds activations too:
    # with q6_k in groups of 256, by which the log-probability of a token of probability 0.1 may be off by 0.8.
    for storage, limit in (("f32", 5e-3), ("keep", 0.5), ("q8_0", 0.5), ("q4_k", 0.5), ("q4_k_m", 1.0)):
        path = work / f"smollm2.{storage}.gguf"
        program("export", f"model={model}", f"output={path}", f"storage={storage}")
        compare_answers(report, program, work, python, f"llama.cpp.{storage}", path, limit)
        if storage == "f32":
            adapter, file = random_adapter(work / "smollm2.adapter"), work / "smollm2.adapter.gguf"
            program("export", f"model={model}", f"adapter={adapter}", f"output={file}", "format=gguf_adapter")
            compare_answers(report, program, work, python, "llama.cpp.adapter", path, limit, adapter, file)
        path.unlink()


def random_adapter(directory: Path) -> Path:
    """A random LoRA adapter for SmolLM2-135M that uses every way to scale a module."""
    directory.mkdir()
    settings = dict(peft_type="LORA", task_type="CAUSAL_LM", r=4, lora_alpha=3, use_rslora=True,
                    target_modules=["q_proj", "k_proj", "down_proj"], rank_pattern={"k_proj": 2},
                    alpha_pattern={"down_proj": 5})
    (directory / "adapter_config.json").write_text(json.dumps(settings))
    modules = {"self_attn.q_proj": (4, 576, 576), "self_attn.k_proj": (2, 576, 192),
               "mlp.down_proj": (4, 1536, 576)}
    generator = torch.Generator().manual_seed(7)
    tensors = {}
    for layer in range(30):
        for module, (rank, wide, high) in modules.items():
            name = f"base_model.model.model.layers.{layer}.{module}.lora_"
            tensors[f"{name}A.weight"] = torch.randn(rank, wide, generator=generator) / wide ** 0.5
            tensors[f"{name}B.weight"] = 0.03 * torch.randn(high, rank, generator=generator)
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    return directory


def compare_answers(report, program, work: Path, python: Path, name: str, path: Path, limit: float,
                    adapter: Path | None = None, adapter_file: Path | None = None) -> None:
    asked = {"texts": TEXTS, "prompts": PROMPTS, "tokens": 12}
    files = [path] if adapter_file is None else [path, adapter_file]
    with_adapter = [] if adapter is None else [f"adapter={adapter}"]
    done = subprocess.run([python, Path(__file__).with_name("llama_cpp_answers.py"), *files],
                          input=json.dumps(asked), capture_output=True, text=True, timeout=300)
    said = json.loads(done.stdout)
    data = work / "asked.txt"
    different = 0
    for text, ids in zip(TEXTS, said["ids"]):
        data.write_text(text)
        different += program.tokens(path, data)[0]["ids"] != ids
    report.line(f"{name}: texts with other ids", different, 0)
    other, worst = 0, 0.0
    for prompt, answer in zip(PROMPTS, said["answers"]):
        ours = json.loads(program("generate", f"model={path}", f"prompt={prompt}", "max_new_tokens=12",
                                  "chat_template=plain", "product=f32", "--json", *with_adapter))["text"]
        data.write_text(prompt + ours)
        logits = program.logits(path, data, work / "asked.safetensors", *with_adapter)
        data.write_text(prompt)
        begin = len(program.tokens(path, data)[0]["ids"])
        chosen = logits["ids"][begin:].tolist()
        # Where two tokens are almost equally likely, rounding decides, and everything after them differs.
        same = next((i for i, ((a, _), b) in enumerate(zip(answer, chosen)) if a != b), len(chosen))
        sure = logits["logits"].double().log_softmax(-1)[begin - 1:]
        other += path.name.endswith(".f32.gguf") and same < len(chosen)
        worst = reduce(worse, (abs(sure[i, token].item() - logprob)
                               for i, (token, logprob) in enumerate(answer[:same + 1])), worst)
    report.line(f"{name}: other answers", other, 0)
    report.line(f"{name}: log-probabilities", worst, limit)


def check_conversions(report, program, work: Path, seed: int, place: Path, model: Path,
                      llama_cpp: Path, gptqmodel: Path) -> None:
    rng = random.Random(seed)
    check_merge(report, program, work, rng)
    check_quantised_bases(report, program, work, seed, place)
    check_gguf(report, program, work, rng, llama_cpp)
    check_nf4(report, program, work, rng)
    check_gptq(report, program, work, rng, gptqmodel)
    check_exl2(report, program, work, rng, place)
    check_llama_cpp(report, program, work, model, llama_cpp)
