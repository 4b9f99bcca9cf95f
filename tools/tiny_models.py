"""Writes small models for tools/parity.py: a tokenizer with a few merges, random weights, GGUF by the gguf package."""

import json
from pathlib import Path

import gguf
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import golden

# Beside "llama", which has the name of Llama and Mistral.
GGUF_ARCHITECTURES = {"qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3,
                      "smollm3": gguf.MODEL_ARCH.SMOLLM3}

TEXTS = ["A jackscrew lifts a house with one hand, a turn at a time.",
         "In 1969, 3 men flew 384,400 km; pi is 3.14159265.",
         "def clip(g, limit):\n    return [x * min(1, limit / norm) for x in g]\n",
         "Привет, мир! naïve café"]


def tiny_tokenizer(texts: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE of a few merges, saved as tokenizer.json like any other model's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def write_model(directory: Path, name: str, shape: dict, seed: int) -> dict[str, torch.Tensor]:
    tokenizer = tiny_tokenizer(TEXTS, 300)
    tokenizer.save_pretrained(directory)
    kind = name if name in ("qwen2", "qwen3", "smollm3") else "llama"
    config = golden.llama(len(tokenizer), **(shape | {"max_position_embeddings": 1024}))
    case = golden.Case(name, seed, [], config, model_type=kind)
    golden.write_config(case, directory)
    weights = golden.random_weights(golden.double_model(directory), seed)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return weights


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of q and k in the interleaved order of GGUF files of Llama and SmolLM3."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, name: str, config: dict, weights: dict[str, torch.Tensor],
               tokenizer: PreTrainedTokenizerFast) -> None:
    writer = gguf.GGUFWriter(path, name)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    special = set(tokenizer.all_special_tokens)
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL
                            for token in tokens])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge)
                             for merge in model["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    names = gguf.get_tensor_name_map(GGUF_ARCHITECTURES[name], config["num_hidden_layers"])
    for tensor, value in weights.items():
        for part, heads in (("q_proj.weight", "num_attention_heads"),
                            ("k_proj.weight", "num_key_value_heads")):
            if not name.startswith("qwen") and tensor.endswith(part):
                value = interleaved(value, config[heads])
        writer.add_tensor(names.get_name(tensor, try_suffixes=(".weight", ".bias")), value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
