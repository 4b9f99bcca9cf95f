// adapter_config.json and, behind a zero byte, adapter_model.safetensors.
#include <algorithm>

#include "formats/peft.h"
#include "tests/fuzz/fuzz.h"

void jackscrew::parse_input(std::string_view bytes) {
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  write_file("adapter_config.json", bytes.substr(0, end));
  write_file("adapter_model.safetensors", bytes.substr(std::min(end + 1, bytes.size())));
  accepts([] { read_peft_adapter(directory()).contradiction(2); });
}
