"""Runs llama.cpp on a GGUF file: prints ids of texts, and greedy answers with their log-probabilities.

The arguments are the model's file and optionally an adapter's. Called by tools/conversion_parity.py with the Python of
.cache/llama_cpp, which has the package xllamacpp. Reads {"texts": [...], "prompts": [...], "tokens": N} from stdin,
prints {"ids": [[...]], "answers": [[[id, logprob], ...]]}.
"""

import json
import os
import sys
import urllib.request

import xllamacpp


def main() -> None:
    asked = json.load(sys.stdin)
    # llama.cpp writes to both streams.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = sys.argv[1]
    if len(sys.argv) > 2:
        adapter = xllamacpp.CommonAdapterLoraInfo()
        adapter.path, adapter.scale = sys.argv[2], 1.0
        parameters.lora_adapters = [adapter]
    parameters.n_ctx = 512
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = 2
    server = xllamacpp.Server(parameters)

    def tokens(text: str) -> list[int]:
        request = urllib.request.Request(f"{server.listening_address}/tokenize", method="POST",
                                         data=json.dumps({"content": text}).encode(),
                                         headers={"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request))["tokens"]

    def greedy(prompt: str) -> list[list]:
        found = server.handle_completions({"prompt": prompt, "n_predict": asked["tokens"],
                                           "temperature": 0, "logprobs": 1, "cache_prompt": False})
        if isinstance(found, str):
            found = json.loads(found)
        return [[step["id"], step["logprob"]]
                for step in found["choices"][0]["logprobs"]["content"]]

    json.dump({"ids": [tokens(text) for text in asked["texts"]],
               "answers": [greedy(prompt) for prompt in asked["prompts"]]}, answer)
    answer.flush()


if __name__ == "__main__":
    main()
