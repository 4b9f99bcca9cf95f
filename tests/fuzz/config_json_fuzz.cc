// config.json: what is read can be written and read again.
#include "formats/hf_config.h"
#include "tests/fuzz/fuzz.h"

void jackscrew::parse_input(std::string_view bytes) {
  ModelConfig config;
  if (!accepts([&] { config = parse_hf_config(std::string(bytes), "config.json"); })) return;
  parse_hf_config(write_hf_config(config, "float32"), "config.json");
  write_hf_generation_config(config);
}
