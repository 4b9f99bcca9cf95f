// quantize_config.json and, behind a zero byte, model.safetensors: weights that other programs have
// quantised, brought into storage as a run would.
#include <algorithm>

#include "formats/safetensors.h"
#include "tests/fuzz/fuzz.h"

void jackscrew::parse_input(std::string_view bytes) {
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  write_file("quantize_config.json", bytes.substr(0, end));
  write_file("model.safetensors", bytes.substr(std::min(end + 1, bytes.size())));
  accepts([] {
    const SafetensorsSource source(directory());
    for (const std::string& name : source.names()) {
      accepts([&] {
        const StoredTensor& tensor = *source.find(name);
        if (!tensor.transcode) return;
        int64_t written = 0;
        const auto count = [&](std::span<const uint8_t> piece) {
          written += static_cast<int64_t>(piece.size());
        };
        tensor.transcode(tensor.shape[0], 1, count);
        // A weight takes what its format asks for, and copies what is written.
        if (written != tensor.format->storage_bytes(tensor.shape[0], tensor.shape[1])) abort();
      });
    }
  });
}
