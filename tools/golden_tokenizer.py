"""Writes tests/text/data/: two tiny byte-level BPE tokenizers and the ids that they must produce.

One has SmolLM2's pre-tokenizer and chat template and lacks tokens for some bytes, as SmolLM2 does; the
other has Llama 3's pre-tokenizer, BOS and ignore_merges. The lines are chosen to be hostile.

    pip install tokenizers==0.23.3 transformers==5.17.0
    python tools/golden_tokenizer.py
"""

import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from tokenizers import trainers
from transformers import PreTrainedTokenizerFast

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests" / "text" / "data"

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")

SMOLLM2_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}")

TEXT = """
A screw jack lifts a heavy load by turning a thread: little force, many turns. The turning is slow, but
what has been lifted stays lifted, even when nobody holds the handle. You are a helpful assistant.
She's sure they'll say we've done it; I'd say you're right, and I'm not one who doesn't care.
In 1838 the patent was granted; by 1901, 12345 of them had been sold at 3.14 crowns each.
def lift(load, turns=10):
    for turn in range(turns):
        load.height += 0.25  # millimetres
    return load
    \tif (x != NULL && y[i] == 0) { printf("%d\\n", x->count); }
Der Wagenheber hebt schwere Lasten; größere Übersetzung, kleinere Kraft. Le cric élève la charge.
Домкрат поднимает груз. 起重器可以举起重物。ジャッキは重い物を持ち上げる。 잭은 무거운 물건을 든다.
الرافعة ترفع الأحمال الثقيلة. המגבה מרים משאות כבדים. जैक भारी वजन उठाता है।
""" * 3

LINES = [
    "", " ", "  ", "\n", "\r\n", "\n\n\n", " \n ", "\t\t", "a", " a", "a ", "  a  b   c    ",
    "The turning is slow, but what has been lifted stays lifted.",
    "she's She'S they'LL we've I'D you'Re '\u017f it'\u017f 'tis 't", "''''s 'x 'll'll",
    "1 12 123 1234 12345 3.14 1e-9 0x1F 12 345 678", "7" * 50, "\u0663\u0664\u0665 \u00bd\u2167\u00b2 \U0001d7d8\U0001d7d9",
    "    for turn in range(10):\n        x += 0.25  # mm\n\n\n\treturn x;\r\n}", "x" * 100, "la" * 60,
    " " * 70 + "x", "\n" * 20 + " " * 5 + "\n", "===----====----....!!!???###", "a_b__c___d",
    "gr\u00f6\u00dfere \u00dcbersetzung", "gro\u0308\u00dfere U\u0308bersetzung", "\u0414\u043e\u043c\u043a\u0440\u0430\u0442 \u043f\u043e\u0434\u043d\u0438\u043c\u0430\u0435\u0442",
    "\u8d77\u91cd\u5668\u53ef\u4ee5\u4e3e\u8d77\u91cd\u7269\u3002 \u30b8\u30e3\u30c3\u30ad\uff11\uff12\uff13", "\uc7ad\uc740 \ubb34\uac70\uc6b4 \u1112\u1161\u11ab",
    "\u0627\u0644\u0631\u0627\u0641\u0639\u0629 \u062a\u0631\u0641\u0639 \u200fabc\u200e \u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd", "\u091c\u0948\u0915 \u092d\u093e\u0930\u0940", "\ufdfa\ufb03",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f469\U0001f3fd\u200d\U0001f4bb \U0001f1e9\U0001f1ea 1\ufe0f\u20e3",
    "\x00\x01\x02\x1f\x7f\x80\x9f", "\u00a0\u2003\u3000 \u1680\u2028\u2029\x85\x0b\x0c", "a\u180eb \u180e\u180e c", "\ufeffbom\u200b\u2060",
    "\x1c\x1d\x1e a", "\ue000\U000f0000\U0010ffff\ufffd", "\U00020000\U0001d400\U00010348", "n\u0303\u0303\u0303\u0303",
    "<|im_start|>user\nhi<|im_end|>", "<|im_start|", "<<|im_end|>>", "<|im_end|><|im_end|>", "<|begin_of_text|>",
    "<tool> x <tool>>", "<tool>y</tool>", "a<|im_start|><|im", "\u0120\u010a", "lifted\u00a0stays  \u00a0 x",
]

CHATS = [
    [{"role": "user", "content": "What is a jack?"}, {"role": "assistant", "content": "A screw."}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "\n\nHi 123"},
     {"role": "assistant", "content": "Hello  there"}, {"role": "user", "content": "Bye"},
     {"role": "assistant", "content": "Gr\u00fc\u00dfe \U0001f44b"}],
]


def train(pre_tokenizer, special, missing):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False,
                                  initial_alphabet=sorted(set(byte_alphabet()) - set(missing)))
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def byte_alphabet():
    return pre_tokenizers.ByteLevel.alphabet()


def random_lines(count):
    """Random mixtures of code points that exist in Unicode 14, reproducible from the seed."""
    rng = random.Random(7)
    starts = [0x20, 0xA0, 0x300, 0x400, 0x5D0, 0x660, 0x900, 0x2000, 0x2150, 0x3040, 0x4E00, 0x1D400,
              0x1F600]
    return ["".join(chr(rng.choice(starts) + rng.randrange(32)) * rng.choice([1, 1, 1, 2, 5])
                    for _ in range(rng.randrange(1, 20))) for _ in range(count)]


def main():
    DATA.mkdir(parents=True, exist_ok=True)
    smollm = train(
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]),
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        # The bytes 0x01, 0xC0, 0xC1 and 0xF5 .. 0xFF; all but the first never occur in UTF-8.
        ["\u0101", "\u00c0", "\u00c1"] + [chr(c) for c in range(0xF5, 0x100)])
    llama3 = train(
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
        [], [])
    # A word in the vocabulary that no merge makes: one token only with ignore_merges.
    root = json.loads(llama3.to_str())
    root["model"]["ignore_merges"] = True
    root["model"]["vocab"]["\u0120jackscrew"] = len(root["model"]["vocab"])
    llama3 = Tokenizer.from_str(json.dumps(root))
    llama3.add_special_tokens(["<|begin_of_text|>", "<|im_end|>"])
    llama3.add_tokens([AddedToken(t, normalized=False) for t in ["<tool>", "<tool>>"]])
    bos = llama3.token_to_id("<|begin_of_text|>")
    llama3.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair=None,
                                      special_tokens=[("<|begin_of_text|>", bos)])])
    lines = LINES + ["a jackscrew jackscrews"] + random_lines(30)
    golden = {"lines": lines}
    for name, tokenizer in [("smollm", smollm), ("llama3", llama3)]:
        text = json.dumps(json.loads(tokenizer.to_str()), separators=(",", ":"))
        (DATA / f"{name}_tokenizer.json").write_text(text + "\n")
        golden[name] = [tokenizer.encode(line, add_special_tokens=False).ids for line in lines]
    qwen2 = pre_tokenizers.Split(Regex(LLAMA3.replace("{1,3}", "")), "isolated")
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    golden["words"] = {}
    for name, step in [("smollm", smollm.pre_tokenizer), ("llama-bpe", llama3.pre_tokenizer),
                       ("qwen2", qwen2), ("gpt-2", gpt2)]:
        # Word lengths in code points.
        golden["words"][name] = [[end - begin for _, (begin, end) in step.pre_tokenize_str(line)]
                                 for line in lines]
    chat = PreTrainedTokenizerFast(tokenizer_object=smollm)
    chat.chat_template = SMOLLM2_TEMPLATE
    golden["template"] = SMOLLM2_TEMPLATE
    golden["chats"] = CHATS
    golden["chat_ids"] = [chat.apply_chat_template(c, return_dict=False) for c in CHATS]
    golden["prompt_ids"] = [chat.apply_chat_template(c[:-1], add_generation_prompt=True,
                                                     return_dict=False) for c in CHATS]
    (DATA / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
