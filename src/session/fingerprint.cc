#include "session/fingerprint.h"

#include <algorithm>

#include "base/crc32c.h"
#include "formats/hf_config.h"
#include "formats/peft.h"

namespace jackscrew {

namespace {

// So many pages of each tensor, from its first to its last: a few thousand reads.
constexpr size_t kPages = 8;
constexpr size_t kPageBytes = 4096;

void add_tensor(Crc32c& sum, const StoredTensor& tensor) {
  sum.add(fmt::format("{} {} {} {}\n", tensor.name,
                      tensor.format == nullptr ? "" : tensor.format->name(),
                      fmt::join(tensor.shape, "x"), tensor.size_bytes()));
  const size_t size = tensor.bytes.size();
  if (size <= kPages * kPageBytes) return sum.add(tensor.bytes);
  for (size_t page = 0; page < kPages; ++page) {
    // In this order nothing overflows.
    const size_t begin = (size - kPageBytes) / (kPages - 1) * page;
    sum.add(tensor.bytes.subspan(page + 1 < kPages ? begin : size - kPageBytes, kPageBytes));
  }
}

}  // namespace

uint32_t model_fingerprint(const ModelFiles& files, const fs::path& adapter) {
  Crc32c sum;
  sum.add(write_hf_config(files.config, "float32"));
  if (files.source != nullptr) {
    std::vector<std::string> names = files.source->names();
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
      if (const StoredTensor* const tensor = files.source->find(name)) add_tensor(sum, *tensor);
    }
  }
  if (!adapter.empty()) {
    sum.add(MappedFile(adapter / kPeftWeightsFile).bytes());
  }
  return sum.value();
}

}  // namespace jackscrew
