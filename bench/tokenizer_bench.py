"""Speed of our tokenizers beside Hugging Face's library, on one thread each, turn by turn in one run.

    .cache/oracle/bin/python bench/tokenizer_bench.py --text FILE
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from tokenizers import Tokenizer

import tokenizer_parity as known

CHUNK = 4096  # bytes, up to the next line end, as tokenizer_bench cuts


def chunks(text: bytes) -> list[str]:
    out = []
    while text:
        line = text.find(b"\n", CHUNK)
        length = len(text) if line < 0 else line + 1
        out.append(text[:length].decode())
        text = text[length:]
    return out


def theirs(tokenizer: Tokenizer, parts: list[str], size: int) -> tuple[float, int]:
    begin = time.process_time()
    tokens = sum(len(tokenizer.encode(part, add_special_tokens=False).ids) for part in parts)
    return size * 1e-6 / (time.process_time() - begin), tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=Path, default=ROOT / "build/release/bench/tokenizer_bench")
    parser.add_argument("--tokenizers", type=Path, default=ROOT / ".cache/tokenizers",
                        help="the directory that script/setup --tokenizers makes")
    parser.add_argument("--text", type=Path, required=True, help="UTF-8")
    options = parser.parse_args()

    text = options.text.read_bytes()
    parts = chunks(text)
    tokenizers = {
        "smollm": known.trained()["smollm"](),
        "qwen2": known.trained()["qwen2"](),
        "llama3": known.llama3(options.tokenizers / "llama3.tokenizer.model"),
        "mistral": known.mistral(options.tokenizers / "data.tokenizer.model.v1")[0],
    }
    print(f"{len(text) / 1e6:.1f} MB of text, MB/s of processor time")
    for name, tokenizer in tokenizers.items():
        with tempfile.TemporaryDirectory() as place:
            tokenizer.save(f"{place}/tokenizer.json")
            command = [options.program, f"tokenizer={place}", f"text={options.text}", f"chunk={CHUNK}",
                       "--clock=cpu", "--json"]
            best, ours = (0.0, 0), {"mb_per_second": 0.0}
            for _ in range(3):
                best = max(best, theirs(tokenizer, parts, len(text)))
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                ours = max(ours, json.loads(done.stdout), key=lambda r: r["mb_per_second"])
        if ours["tokens"] != best[1]:
            sys.exit(f"{name}: {ours['tokens']} tokens, not {best[1]}")
        rate = ours["mb_per_second"]
        print(f"{name:8} ours {rate:6.1f}  theirs {best[0]:6.1f}  ratio {rate / best[0]:5.1f}"
              f"  loaded in {ours['load_seconds']:.2f} s", flush=True)


main()
