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
        if (tensor.shape.size() != 2) return;
        const int64_t wanted = tensor.format->storage_bytes(tensor.shape[0], tensor.shape[1]);
        int64_t written = 0;
        if (!tensor.transcode) {
          written = static_cast<int64_t>(tensor.bytes.size());
          for (const auto part : tensor.extra_parts) {
            written = round_up(written, 64) + static_cast<int64_t>(part.size());
          }
          if (written != wanted && !tensor.extra_parts.empty()) abort();
          return;
        }
        const auto count = [&](std::span<const uint8_t> piece) {
          written += static_cast<int64_t>(piece.size());
        };
        tensor.transcode(tensor.shape[0], 1, count);
        // A weight takes what its format asks for, and copies what is written.
        if (written != wanted) abort();
      });
    }
  });
}
