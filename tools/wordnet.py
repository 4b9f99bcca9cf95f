#!/usr/bin/env python3
"""Builds the demo's instruction data from WordNet's glosses (Debian package wordnet-base).

Writes train.jsonl and heldout.jsonl, lines of {"instruction": "Define: WORD", "output": GLOSS}, of
common single-word nouns in their first sense, and prompts.txt, three of the held-out words to ask
before and after training. No word, and no gloss, is in both files. Standard library only; the same
seed gives the same files.
"""

import argparse
import json
import random
import re
import sys
from pathlib import Path

MIN_GLOSS, MAX_GLOSS = 15, 120
MIN_TAGS = 2  # a sense seen at least this often in the tagged texts: words that people know
# Held out with any seed; anyone can judge the answers.
PROMPTS = ("candle", "harbor", "sculptor")

NOUN = re.compile(r"^([a-z]{3,12})%1:\d\d:\d\d:: 1 (\d+)$")


def tag_counts(path: Path) -> dict[str, int]:
    """How often each noun's first sense was tagged in WordNet's texts."""
    counts: dict[str, int] = {}
    for line in path.read_text(encoding="latin-1").splitlines():
        match = NOUN.match(line)
        if match:
            counts[match[1]] = int(match[2])
    return counts


def first_offsets(path: Path) -> dict[str, int]:
    """The byte offset in data.noun of each noun's first sense."""
    offsets = {}
    for line in path.read_text(encoding="latin-1").splitlines():
        if line.startswith(" "):
            continue  # the licence
        fields = line.split()
        # lemma pos synsets pointers [symbol...] senses tagged offset...
        pointers = int(fields[3])
        offsets[fields[0]] = int(fields[4 + pointers + 2])
    return offsets


def short_gloss(line: str) -> str | None:
    """The definition without examples and quotations; None if it is too short or too long."""
    definition = line.split(" | ", 1)[1].split('"')[0].strip().rstrip(";:, ")
    if not MIN_GLOSS <= len(definition) <= MAX_GLOSS or not definition.isascii():
        return None
    # A leading remark such as "(botany)", or an unbalanced bracket, does not read as an answer.
    if definition[0] == "(" or definition.count("(") != definition.count(")"):
        return None
    return definition


def collect(wordnet: Path) -> list[tuple[str, str]]:
    counts = tag_counts(wordnet / "cntlist.rev")
    offsets = first_offsets(wordnet / "index.noun")
    data = (wordnet / "data.noun").read_bytes()
    pairs = []
    for word, count in sorted(counts.items()):
        if count < MIN_TAGS or word not in offsets:
            continue
        begin = offsets[word]
        line = data[begin:data.index(b"\n", begin)].decode("latin-1")
        gloss = short_gloss(line)
        # A gloss that contains its own word teaches nothing.
        if gloss and not re.search(rf"\b{word}", gloss):
            pairs.append((word, gloss))
    return pairs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="directory to write to")
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"))
    parser.add_argument("--train", type=int, default=640, help="records in train.jsonl")
    parser.add_argument("--heldout", type=int, default=96, help="records in heldout.jsonl")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()

    missing = [n for n in ("cntlist.rev", "index.noun", "data.noun")
               if not (options.wordnet / n).is_file()]
    if missing:
        print(f"wordnet.py: {options.wordnet} lacks {', '.join(missing)}; "
              "install the Debian package wordnet-base", file=sys.stderr)
        return 1

    pairs = collect(options.wordnet)
    random.Random(options.seed).shuffle(pairs)
    # A stable sort: the prompts first, the rest as shuffled.
    pairs.sort(key=lambda pair: pair[0] not in PROMPTS)
    # Synonyms share a gloss: keep the first, so that no held-out answer was trained on.
    seen: set[str] = set()
    unique = [(w, g) for w, g in pairs if not (g in seen or seen.add(g))]
    if len(unique) < options.train + options.heldout:
        print(f"wordnet.py: only {len(unique)} words to choose from", file=sys.stderr)
        return 1

    heldout = unique[:options.heldout]
    train = unique[options.heldout:options.heldout + options.train]
    options.output.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", train), ("heldout", heldout)):
        lines = [json.dumps({"instruction": f"Define: {w}", "output": g}) for w, g in part]
        (options.output / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    asked = [f"Define: {w}\n" for w in PROMPTS]
    (options.output / "prompts.txt").write_text("".join(asked))
    return 0


if __name__ == "__main__":
    sys.exit(main())
