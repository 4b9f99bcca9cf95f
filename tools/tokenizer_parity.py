"""Compares the program's tokenizers with Hugging Face's, id by id, on megabytes of hostile text.

A part of tools/parity.py. Real ones: Mistral's tokenizer.model (also as GGUF, and beside the
sentencepiece library), Llama 3's own file. Then one for each family's pre-tokenizer, trained here,
and the files beside a tokenizer.json.
"""

import base64
import importlib
import json
import random
import re
import sys
import unicodedata
from pathlib import Path
from typing import Callable

import gguf
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers
from transformers import AutoTokenizer
from transformers.utils import sentencepiece_model_pb2_new as sentencepiece_pb

from hostile_text import hostile_text
from tiny_models import tiny_tokenizer

# A plain import would give a function of the package with that name.
convert = importlib.import_module("transformers.convert_slow_tokenizer")

SIZE = 5_500_000  # bytes of text for each tokenizer
SHORT_TEXTS = 3000
COUNT = 270  # size of the vocabulary in files_beside()
MARK = "\u2581"

GPT2 = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

# Added tokens, and texts that only look like one.
MARKS = ("<s>", "</s>", " <s> ", "<unk>", "[INST]", "[/INST] ", "[IMG]", "<|begin_of_text|>", "<|eot_id|>",
         "<|eot", "<tool>", "<tool> ", "<tool>>", "<0x41>", MARK, MARK + " ", "é<tool>e\u0301")
LLAMA3_SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>",
                  "<|reserved_special_token_1|>", "<|finetune_right_pad_id|>", "<|step_id|>",
                  "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
                  "<|python_tag|>", "<|image|>"]
LLAMA3_SPECIAL += [f"<|reserved_special_token_{i}|>" for i in range(2, 246)]


def newer_marks() -> set[str]:
    """Characters unknown to the library's NFC, whose tables are older than Unicode 14."""
    nfc = normalizers.NFC()

    def known(c: str) -> bool:
        return all(nfc.normalize_str(text) == unicodedata.normalize("NFC", text)
                   for text in (c, c + "\u0334", "\u0301" + c))

    return {c for c in map(chr, range(0x300, sys.maxunicode + 1))
            if (unicodedata.combining(c) or unicodedata.decomposition(c)) and not known(c)}


def marked_text(size: int, seed: int) -> str:
    rng = random.Random(seed)
    text = "".join(part + (rng.choice(MARKS) if rng.random() < 0.05 else "x")
                   for part in hostile_text(size, seed).split("x"))
    return text.translate({ord(c): None for c in newer_marks()})


def byte_level(steps: list, nfc: bool = False, prefix: bool = False, regex: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([hostile_text(300_000, 5)], trainers.BpeTrainer(
        vocab_size=4000, special_tokens=["<s>", "</s>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def split(pattern: str):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def sentencepiece_like(normalizer, pre_tokenizer, fallback: bool) -> Tokenizer:
    """A tokenizer trained on words, as SentencePiece does, then given the normalizer and pre-tokenizer."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    # Later parts of the text contain characters without a token.
    tokenizer.train_from_iterator([hostile_text(200_000, 5)], trainers.BpeTrainer(
        vocab_size=6000, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False,
        limit_alphabet=1500))
    root = json.loads(tokenizer.to_str())
    if fallback:
        vocabulary = root["model"]["vocab"]
        for byte in range(256):
            vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
        root["model"]["byte_fallback"] = True
    tokenizer = Tokenizer.from_str(json.dumps(root))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = text_decoder()
    return tokenizer


def text_decoder():
    return decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                              decoders.Strip(" ", 1, 0)])


def llama2_normalizer():
    return normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])


def trained() -> dict[str, Callable[[], Tokenizer]]:
    digits = pre_tokenizers.Digits(individual_digits=True)
    metaspace = pre_tokenizers.Metaspace
    return {
        "gpt2": lambda: byte_level([], regex=True),
        "gpt2_prefix": lambda: byte_level([], regex=True, prefix=True),
        "gpt2_split": lambda: byte_level([split(GPT2)]),
        "smollm": lambda: byte_level([digits], regex=True),
        "llama3": lambda: byte_level([split(LLAMA3)]),
        "qwen2": lambda: byte_level([split(QWEN2)], nfc=True),
        "tekken": lambda: byte_level([split(TEKKEN)]),
        "llama2": lambda: sentencepiece_like(llama2_normalizer(), None, True),
        "llama2_unk": lambda: sentencepiece_like(llama2_normalizer(), None, False),
        "metaspace_always": lambda: sentencepiece_like(
            None, metaspace(prepend_scheme="always", split=True), True),
        "metaspace_first": lambda: sentencepiece_like(
            None, metaspace(prepend_scheme="first", split=False), True),
        "metaspace_never": lambda: sentencepiece_like(
            None, metaspace(prepend_scheme="never", split=True), False),
        "metaspace_nfc": lambda: sentencepiece_like(
            normalizers.NFC(), metaspace(prepend_scheme="first", split=True), True),
    }


def mistral(path: Path) -> tuple[Tokenizer, object]:
    """Converts as transformers' LlamaConverter made Mistral's and Llama 2's published tokenizer.json."""
    model = sentencepiece_pb.ModelProto()
    model.ParseFromString(path.read_bytes())
    vocabulary = {piece.piece: i for i, piece in enumerate(model.pieces)}
    scores = {piece.piece: piece.score for piece in model.pieces}
    merges = convert.generate_merges(vocabulary, scores)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True,
                                     byte_fallback=True))
    tokenizer.normalizer = llama2_normalizer()
    tokenizer.add_tokens([AddedToken(piece.piece, normalized=False, special=piece.type != 4)
                          for piece in model.pieces if piece.type in (2, 3, 4)])
    tokenizer.decoder = text_decoder()
    add_bos(tokenizer, "<s>")
    return tokenizer, model


def llama3(path: Path) -> Tokenizer:
    class Converter(convert.TikTokenConverter):
        @staticmethod
        def load_tiktoken_bpe(tiktoken_url: str) -> dict[bytes, int]:
            lines = Path(tiktoken_url).read_bytes().split(b"\n")
            pairs = (line.split() for line in lines if line)
            return {base64.b64decode(token): int(rank) for token, rank in pairs}

    tokenizer = Converter(str(path), extra_special_tokens=LLAMA3_SPECIAL).converted()
    add_bos(tokenizer, "<|begin_of_text|>")
    return tokenizer


def add_bos(tokenizer: Tokenizer, bos: str) -> None:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))])


def model_directory(place: Path, vocabulary: int) -> Path:
    """A model without weights: enough to tokenize with."""
    place.mkdir()
    (place / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary,
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
        "hidden_act": "silu"}))
    (place / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return place


def write_gguf(path: Path, model) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(model.pieces))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([piece.piece.encode() for piece in model.pieces])
    writer.add_token_scores([piece.score for piece in model.pieces])
    writer.add_token_types([piece.type for piece in model.pieces])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class TokenizerParity:
    def __init__(self, parity, files: Path) -> None:
        self.parity = parity
        self.files = files
        self.work: Path = parity.work / "tokenizers"
        self.work.mkdir()
        text = marked_text(SIZE, parity.seed)
        self.long = self.work / "long.txt"
        self.long.write_bytes(text.encode())
        self.text = text
        rng = random.Random(parity.seed)
        self.pieces = []
        for _ in range(SHORT_TEXTS):
            begin = rng.randrange(len(text))
            self.pieces.append(rng.choice(("", "", " ", *MARKS)) + text[begin:begin + rng.randrange(60)])
        self.pieces = [piece for piece in self.pieces if piece.strip()]
        self.short = self.work / "short.jsonl"
        self.short.write_text("".join(json.dumps({"text": piece}) + "\n" for piece in self.pieces))

    def compare(self, name: str, model: Path, tokenizer: Tokenizer, bos: int,
                eos: int | None = None) -> None:
        """Compares one long text, and many short ones that are each encoded separately."""
        ours = self.parity.program.tokens(model, self.long)
        self.parity.same_ids(f"{name}.long", ours[0]["ids"], tokenizer.encode(self.text).ids,
                             lambda ids: [tokenizer.id_to_token(i) for i in ids])
        theirs = []
        for piece in self.pieces:
            ids = tokenizer.encode(piece, add_special_tokens=False).ids
            # BOS and EOS are not doubled where the text has its own.
            theirs += ids if ids[:1] == [bos] else [bos, *ids]
            theirs += [] if eos is None or ids[-1:] == [eos] else [eos]
        ours = self.parity.program.tokens(model, self.short)
        self.parity.same_ids(f"{name}.short", sum((record["ids"] for record in ours), []), theirs,
                             lambda ids: [tokenizer.id_to_token(i) for i in ids])

    def real(self) -> None:
        for path in sorted(self.files.glob("data.*")):
            name = "mistral" + re.sub(r".*\.model", "", path.name)
            tokenizer, model = mistral(path)
            place = model_directory(self.work / name, len(model.pieces))
            (place / "tokenizer.model").write_bytes(path.read_bytes())
            self.compare(name, place, tokenizer, bos=1, eos=2)
            # The library has no special tokens within a text.
            plain = hostile_text(SIZE, self.parity.seed)
            text = self.work / "plain.txt"
            text.write_bytes(plain.encode())
            ids = self.parity.program.tokens(place, text)[0]["ids"]
            library = sentencepiece.SentencePieceProcessor(str(path))
            self.parity.same_ids(f"{name}.sentencepiece", ids, [1, *library.encode(plain)],
                                 library.id_to_piece)
            if name == "mistral.v3":
                write_gguf(self.work / "mistral.gguf", model)
                self.compare(f"{name}.gguf", self.work / "mistral.gguf", tokenizer, bos=1, eos=2)
                self.exported(name, self.work / "mistral.gguf", tokenizer)
        path = self.files / "llama3.tokenizer.model"
        tokenizer = llama3(path)
        place = model_directory(self.work / "llama3_own", tokenizer.get_vocab_size())
        (place / "tokenizer.model").write_bytes(path.read_bytes())
        self.compare("llama3_own", place, tokenizer, bos=128000, eos=128001)
        place = model_directory(self.work / "llama3_json", tokenizer.get_vocab_size())
        tokenizer.save(str(place / "tokenizer.json"))
        self.compare("llama3_json", place, tokenizer, bos=128000)

    def families(self) -> None:
        for name, make in trained().items():
            tokenizer = make()
            tokenizer.add_tokens([AddedToken("<tool>", normalized=True),
                                  AddedToken("<tool>>", normalized=False)])
            if name == "llama2_unk":  # as in older files: found after a space
                tokenizer.add_special_tokens([AddedToken("<s>", normalized=True)])
            add_bos(tokenizer, "<s>")
            place = model_directory(self.work / name, tokenizer.get_vocab_size())
            tokenizer.save(str(place / "tokenizer.json"))
            self.compare(name, place, tokenizer, bos=tokenizer.token_to_id("<s>"))

    def exported(self, name: str, model: Path, tokenizer: Tokenizer) -> None:
        """Hugging Face's library opens the tokenizer.json that a run writes."""
        data = self.work / "lines.txt"
        data.write_text("a screw\n" * 100)
        output = self.work / f"{name}_run"
        self.parity.program("train", f"model={model}", f"data={data}", "method=full", "init=random",
                            "max_steps=1", "sequence_len=32", f"output_dir={output}")
        written = next(output.rglob("tokenizer.json"))
        theirs = Tokenizer.from_file(str(written))
        ids = theirs.encode(self.text).ids
        self.parity.same_ids(f"{name}.exported", ids, tokenizer.encode(self.text).ids,
                             lambda ids: [tokenizer.id_to_token(i) for i in ids])
        said = theirs.decode(ids), tokenizer.decode(ids)
        self.parity.report.line(f"{name}.exported.decoded", float(said[0] != said[1]), 0,
                                f"{len(said[1])} characters")


    def beside(self) -> None:
        """The files beside a tokenizer.json, compared with how AutoTokenizer reads them."""
        text = " ".join(["<s>", "<new>", "<other>", "the q</s> <pad>", "a<new>b </s>c"] * 3)
        for name, files in files_beside().items():
            tokenizer = tiny_tokenizer([text, "the thing"], COUNT)
            place = model_directory(self.work / f"beside_{name}", COUNT + 8)
            tokenizer.backend_tokenizer.save(str(place / "tokenizer.json"))
            for file, content in files.items():
                (place / file).parent.mkdir(exist_ok=True)
                (place / file).write_text(content if isinstance(content, str) else json.dumps(content))
            theirs = AutoTokenizer.from_pretrained(place)
            data = place / "text.txt"
            data.write_text(text)
            self.parity.same_ids(f"beside.{name}", self.parity.program.tokens(place, data)[0]["ids"],
                                 theirs.encode(text), theirs.convert_ids_to_tokens)
            ours = json.loads(self.parity.program("inspect", str(place), "--json"))["tokenizer"]
            roles = [ours[f"{role}_token_id"] for role in ("bos", "eos", "pad")]
            named = [theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id]
            self.parity.report.line(f"beside.{name}.roles", float(roles != named), 0, str(named))
            if theirs.chat_template:
                self.conversations(name, place, theirs)

    def conversations(self, name: str, place: Path, tokenizer: AutoTokenizer) -> None:
        """Compares a conversation without tools and one with them."""
        messages = [{"role": "user", "content": "the thing"}, {"role": "assistant", "content": "a"}]
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        records = [{"messages": messages}, {"messages": messages, "tools": tools}]
        data = place / "chats.jsonl"
        data.write_text("".join(json.dumps(record) + "\n" for record in records))
        ours = [record["ids"] for record in self.parity.program.tokens(place, data)]
        theirs = [tokenizer.apply_chat_template(record["messages"], tools=record.get("tools"),
                                                return_dict=False) for record in records]
        self.parity.same_ids(f"beside.{name}.chats", sum(ours, []), sum(theirs, []),
                             tokenizer.convert_ids_to_tokens)


def files_beside() -> dict[str, dict]:
    """case -> files; the tokens that they add follow the COUNT tokens of the vocabulary."""
    roles = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    chat, tools, decoder = "chat_template", "additional_chat_templates/tool_use.jinja", "added_tokens_decoder"
    template = "{% for m in messages %}{{ m.content }}</s>{% endfor %}"
    with_tools = "{{ tools | tojson }}" + template

    def token(content: str, **more) -> dict:
        flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
        return {"content": content, **flags, "special": True, **more}

    def configured(**more) -> dict:
        return {"tokenizer_config.json": {**roles, **more}}

    def mapped(config: dict, **more) -> dict:
        return {**config, "special_tokens_map.json": more}

    added = {"added_tokens.json": {"<new>": COUNT + 1, "<other>": COUNT, "</s>": 2}}
    both = [{"name": "default", "template": template}, {"name": "tool_use", "template": with_tools}]
    return {
        "add_bos": configured(add_bos_token=True, add_eos_token=True),
        "decoder": configured(**{decoder: {str(COUNT): token("<new>"), str(COUNT + 1): token(
            "<other>", special=False, normalized=True)}}),
        "described_anew": configured(pad_token="<unk>", **{decoder: {
            "1": token("<s>", special=False, normalized=True), "2": token("</s>", special=False)}}),
        "pad": configured(pad_token="<pad>"),
        "extra": configured(extra_special_tokens=["<new>", "e"], pad_token="<pad>"),
        "additional": configured(additional_special_tokens=["<other>", "<new>"]),
        "named": configured(image_token="q", extra_special_tokens={"eot_token": "</s>"}),
        "map": mapped({}, bos_token="<s>", eos_token=token("</s>"), pad_token="<pad>"),
        "map_first": mapped(configured(), eos_token="<s>", additional_special_tokens=["<new>"]),
        "two_lists": mapped(configured(additional_special_tokens=["<new>"]),
                            additional_special_tokens=["<other>"]),
        "map_silent": mapped(configured(**{decoder: {"2": token("</s>")}}), eos_token="<s>",
                             pad_token="<pad>"),
        "added": {**configured(), **added},
        "added_named": {**mapped(configured(), pad_token="<new>"), **added},
        "added_silent": {**configured(**{decoder: {"2": token("</s>")}}), **added},
        "templates": configured(**{chat: both}),
        "template_files": {**configured(**{chat: "{{ 1 }}"}), "chat_template.jinja": template,
                           tools: with_tools},
        "template_first": {**configured(**{chat: both}), "chat_template.jinja": template},
    }


def check_tokenizers(parity, files: Path) -> None:
    checks = TokenizerParity(parity, files)
    checks.beside()
    checks.families()
    checks.real()
