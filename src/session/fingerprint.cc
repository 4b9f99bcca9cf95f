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

void add_pages(Crc32c& sum, const StoredTensor& tensor) {
  const size_t size = tensor.bytes.size();
  if (size <= kPages * kPageBytes) return sum.add(tensor.bytes);
  for (size_t page = 0; page < kPages; ++page) {
    // In this order nothing overflows.
    const size_t begin = (size - kPageBytes) / (kPages - 1) * page;
    sum.add(tensor.bytes.subspan(page + 1 < kPages ? begin : size - kPageBytes, kPageBytes));
  }
}

// Adds the configuration and all tensors; add_bytes(tensor) adds what is looked at of one.
template <class AddBytes>
void add_model(Crc32c& sum, const ModelFiles& files, const AddBytes& add_bytes) {
  sum.add(write_hf_config(files.config, "float32"));
  if (files.source == nullptr) return;
  std::vector<std::string> names = files.source->names();
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    const StoredTensor* const tensor = files.source->find(name);
    if (tensor == nullptr) continue;
    sum.add(fmt::format("{} {} {} {}\n", tensor->name,
                        tensor->format == nullptr ? "" : tensor->format->name(),
                        fmt::join(tensor->shape, "x"), tensor->size_bytes()));
    add_bytes(*tensor);
  }
}

}  // namespace

uint32_t model_fingerprint(const ModelFiles& files, const fs::path& adapter) {
  Crc32c sum;
  add_model(sum, files, [&](const StoredTensor& tensor) { add_pages(sum, tensor); });
  if (!adapter.empty()) {
    sum.add(MappedFile(adapter / kPeftWeightsFile).bytes());
  }
  return sum.value();
}

uint32_t model_checksum(const ModelFiles& files) {
  Crc32c sum;
  add_model(sum, files, [&](const StoredTensor& tensor) {
    sum.add(tensor.bytes);
    for (const auto part : tensor.extra_parts) sum.add(part);
    files.source->release(tensor);
  });
  return sum.value();
}

}  // namespace jackscrew
