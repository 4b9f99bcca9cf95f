// config.json: what is read can be written and read again. The same bytes as
// generation_config.json.
#include "formats/hf_config.h"
#include "tests/fuzz/fuzz.h"

void jackscrew::parse_input(std::string_view bytes) {
  parse_end_tokens(std::string(bytes));
  add_end_token(std::string(bytes), 7);
  ModelConfig config;
  if (!accepts([&] { config = parse_hf_config(std::string(bytes), "config.json"); })) return;
  parse_hf_config(write_hf_config(config, "float32"), "config.json");
  write_hf_generation_config(config);
}
