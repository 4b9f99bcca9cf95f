"""Writes tests/text/data/golden_sentencepiece.json and the tiny vocabularies that it refers to.

Tokenizers that spell their tokens as text: one like Llama 2's published tokenizer.json, one with
Metaspace, and a model of the sentencepiece library; and a tiktoken file. The ids are computed by
Hugging Face's tokenizers and by sentencepiece.

    pip install tokenizers==0.23.3 transformers==5.17.0 sentencepiece==0.2.3 gguf==0.19.0 protobuf
    python tools/golden_sentencepiece.py
"""

import base64
import io
import json

import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import trainers

from golden_tokenizer import DATA, LINES, TEXT, random_lines
from tokenizer_parity import MARK, convert, llama2_normalizer, llama3, mistral, text_decoder

MARKED = ["<s>", " <s>", "<s> a", "a<s>b <s> c</s>", "<s>a", "<tool>x <tool> y<tool>>", "<unk>", MARK, MARK + "a",
          "a " + MARK + " b", "<0x41>", " a", "  a", "a  ", "   ", "e\u0301\u0323 \u1e69 s\u0323\u0307 \u212b",
          "\u1100\u1161\u11a8 \uac00\u11a8", "\u0958 \u2126 \u0344", "a\u0315\u0300\u05ae\u0300\u0315b", "\u00e9<tool>e\u0301"]


def train() -> dict:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(
        vocab_size=450, special_tokens=["<unk>", "<s>", "</s>"], limit_alphabet=110,
        show_progress=False))
    return json.loads(tokenizer.to_str())


def llama2(root: dict) -> Tokenizer:
    root = json.loads(json.dumps(root))
    vocabulary = root["model"]["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    root["model"]["byte_fallback"] = True
    tokenizer = Tokenizer.from_str(json.dumps(root))
    tokenizer.normalizer = llama2_normalizer()
    tokenizer.pre_tokenizer = None
    tokenizer.decoder = text_decoder()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    return tokenizer


def metaspace(root: dict) -> Tokenizer:
    tokenizer = Tokenizer.from_str(json.dumps(root))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first", split=True)
    return tokenizer


def main() -> None:
    lines = LINES + MARKED + random_lines(20)
    golden: dict = {"lines": lines}
    root = train()
    for name, tokenizer in [("llama2", llama2(root)), ("metaspace", metaspace(root))]:
        tokenizer.add_tokens([AddedToken("<tool>", normalized=True), AddedToken("<tool>>", normalized=False)])
        text = json.dumps(json.loads(tokenizer.to_str()), separators=(",", ":"))
        (DATA / f"{name}_tokenizer.json").write_text(text + "\n")
        ids = [tokenizer.encode(line, add_special_tokens=False).ids for line in lines]
        golden[name] = {"ids": ids, "decoded": [tokenizer.decode(i, skip_special_tokens=False) for i in ids]}

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.strip().split("\n")), model_writer=model, model_type="bpe",
        vocab_size=560, byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, character_coverage=0.98, user_defined_symbols=["<tool>"],
        num_threads=1, minloglevel=2)
    path = DATA / "sentencepiece.model"
    path.write_bytes(model.getvalue())
    library = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    # The library has no special tokens within a text, cuts it at a NUL, and adds no prefix after
    # user-defined tokens.
    plain = [line for line in lines if not any(t in line for t in ("<s>", "</s>", "<unk>", "<tool>", "\0"))]
    golden["sentencepiece"] = {"lines": plain, "ids": [library.encode(line) for line in plain],
                               "decoded": [library.decode(library.encode(line)) for line in plain]}
    tokenizer, _ = mistral(path)
    golden["sentencepiece"]["marked"] = [tokenizer.encode(line, add_special_tokens=False).ids
                                         for line in lines]

    trained = json.loads((DATA / "llama3_tokenizer.json").read_text())["model"]["vocab"]
    added = {"<|begin_of_text|>", "<|im_end|>", "<tool>", "<tool>>"}
    characters = {c: b for b, c in convert.bytes_to_unicode().items()}
    tokens = [bytes(characters[c] for c in token)
              for token, _ in sorted(trained.items(), key=lambda pair: pair[1]) if token not in added]
    path = DATA / "tiktoken.model"
    path.write_bytes(b"".join(base64.b64encode(t) + b" %d\n" % i for i, t in enumerate(tokens)))
    golden["tiktoken"] = [llama3(path).encode(line, add_special_tokens=False).ids for line in lines]
    text = json.dumps(golden, separators=(",", ":"))
    (DATA / "golden_sentencepiece.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
