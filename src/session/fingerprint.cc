#include "session/fingerprint.h"

#include <algorithm>

#include "base/crc32c.h"
#include "formats/hf_config.h"
#include "formats/peft.h"

namespace jackscrew {

namespace {

// One page of each tensor: a few hundred reads.
constexpr size_t kHeadBytes = 4096;

void add_tensor(Crc32c& sum, const StoredTensor& tensor) {
  sum.add(fmt::format("{} {} {} {}\n", tensor.name,
                      tensor.format == nullptr ? "" : tensor.format->name(),
                      fmt::join(tensor.shape, "x"), tensor.size_bytes()));
  sum.add(tensor.bytes.first(std::min(kHeadBytes, tensor.bytes.size())));
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
