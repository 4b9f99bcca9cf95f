// GGUF: values, tensors, configuration, tokenizer, weights.
#include "formats/gguf_llama.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/tokenizer_use.h"
#include "text/tokenizer/tokenizer_files.h"

void jackscrew::parse_input(std::string_view bytes) {
  const fs::path path = write_file("model.gguf", bytes);
  accepts([&] {
    const GgufFile file(path);
    accepts([&] { gguf_config(file); });
    accepts([&] { use_tokenizer(gguf_tokenizer_data(gguf_tokenizer(file), path.string())); });
    for (const std::string& key : file.keys()) {
      accepts([&] { file.integers(key); });
      accepts([&] { file.numbers(key); });
      accepts([&] { file.text(key); });
    }
  });
}
