#!/usr/bin/env python3
"""Speed of token-by-token generation in llama.cpp, for bench/generate_bench beside it.

    .cache/llama_cpp/bin/python bench/llama_cpp_generate.py MODEL.gguf [--threads 2] [--tokens 64]
                                                            [--rounds 3]

script/setup --oracle installs it (the package xllamacpp). Prints the median of the rounds and the
fastest, as llama.cpp times them: the prompt is not counted.

The same here: generate_bench model=MODEL.gguf threads=2 max_new_tokens=64
"""

import argparse
import json
import os
import statistics

import xllamacpp

# As long as generate_bench's, to within a few tokens.
PROMPT = "The old town lies on a river, between two hills, and its harbour was once the largest " \
         "of the coast. Its people lived of fish, of salt and of"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    # llama.cpp writes to both streams.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = options.model
    parameters.n_ctx = 512
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = options.threads
    server = xllamacpp.Server(parameters)

    rates = []
    for _ in range(options.rounds):
        found = server.handle_completions(
            {"prompt": PROMPT, "n_predict": options.tokens, "temperature": 0, "ignore_eos": True,
             "cache_prompt": False})
        if isinstance(found, str):
            found = json.loads(found)
        rates.append(found["timings"]["predicted_per_second"])
    print(f"llama.cpp {statistics.median(rates):.1f} tokens/s (fastest {max(rates):.1f})",
          file=output, flush=True)


if __name__ == "__main__":
    main()
