#include "session/fingerprint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "base/crc32c.h"
#include "base/text.h"
#include "formats/hf_config.h"
#include "formats/peft.h"
#include "model/weights.h"
#include "text/tokenizer/tokenizer_json.h"

namespace jackscrew {

namespace {

// So many pages of each tensor, from its first to its last: a few thousand reads.
constexpr size_t kPages = 8;
constexpr size_t kPageBytes = 4096;

void add_pages(Crc32c& sum, std::span<const uint8_t> bytes) {
  const size_t size = bytes.size();
  if (size <= kPages * kPageBytes) return sum.add(bytes);
  for (size_t page = 0; page < kPages; ++page) {
    // In this order nothing overflows.
    const size_t begin = (size - kPageBytes) / (kPages - 1) * page;
    sum.add(bytes.subspan(page + 1 < kPages ? begin : size - kPageBytes, kPageBytes));
  }
}

void add_configuration(Crc32c& sum, const ModelFiles& files) {
  sum.add(write_hf_config(files.config, "float32"));
}

// Adds what is said of a tensor, and by add_bytes(bytes) each part of its contents.
template <class AddBytes>
void add_tensor(Crc32c& sum, const ModelFiles& files, const StoredTensor& tensor,
                const AddBytes& add_bytes) {
  sum.add(fmt::format("{} {} {} {}\n", tensor.name,
                      tensor.format == nullptr ? "" : tensor.format->name(),
                      fmt::join(tensor.shape, "x"), tensor.size_bytes()));
  if (!tensor.settings.empty()) sum.add(tensor.settings + "\n");
  add_bytes(tensor.bytes);
  for (const std::span<const uint8_t> part : tensor.extra_parts) add_bytes(part);
  files.source->release(tensor);
}

// Calls body(weight, tensor) for the weights of the model that its files have. They may hold
// others, of types that cannot be read.
template <class Body>
void for_each_tensor(const ModelFiles& files, const Body& body) {
  if (files.source == nullptr) return;
  for (const WeightSpec& weight : weights_of(files.config, StageSpec::whole(files.config))) {
    const StoredTensor* const tensor = files.source->find(weight.name);
    if (tensor != nullptr) body(weight, *tensor);
  }
}

// Adds the configuration and all weights.
template <class AddBytes>
void add_model(Crc32c& sum, const ModelFiles& files, const AddBytes& add_bytes) {
  add_configuration(sum, files);
  for_each_tensor(files, [&](const WeightSpec&, const StoredTensor& tensor) {
    add_tensor(sum, files, tensor, add_bytes);
  });
}

}  // namespace

uint32_t model_fingerprint(const ModelFiles& files, const fs::path& adapter) {
  Crc32c sum;
  add_model(sum, files, [&](std::span<const uint8_t> bytes) { add_pages(sum, bytes); });
  if (!adapter.empty()) {
    sum.add(MappedFile(adapter / kPeftWeightsFile).bytes());
    for (const AdapterOption& option : read_peft_adapter(adapter).options) {
      sum.add(fmt::format("{}={}{}\n", option.name, option.value, fmt::join(option.items, ",")));
    }
  }
  return sum.value();
}

uint32_t model_checksum(const ModelFiles& files, const ProgressCallback& progress) {
  constexpr size_t kPiece = size_t{16} << 20;
  Crc32c sum;
  add_model(sum, files, [&](std::span<const uint8_t> bytes) {
    while (!bytes.empty()) {
      const std::span<const uint8_t> piece = bytes.first(std::min(kPiece, bytes.size()));
      sum.add(piece);
      if (progress) progress(std::ssize(piece));
      bytes = bytes.subspan(piece.size());
    }
  });
  return sum.value();
}

std::string start_fingerprint(const fs::path& adapter, const std::string& original_model) {
  std::string text;
  if (!adapter.empty()) {
    const MappedFile weights(adapter / kPeftWeightsFile);
    text += fmt::format(", adapter {:08x}", crc32c(weights.bytes()));
  }
  if (!original_model.empty()) {
    text +=
        fmt::format(", original model {:08x}", model_fingerprint(open_model(original_model), {}));
  }
  return text;
}

uint32_t tokenizer_fingerprint(const Tokenizer& tokenizer) {
  const TokenizerData& data = tokenizer.data();
  return crc32c(to_tokenizer_json(data) + fmt::format("{} {} {} {} {}", data.bos, data.eos,
                                                      data.pad, data.unk, tokenizer.add_bos()));
}

std::string inputs_fingerprint(const ModelFiles& files, const Tokenizer& tokenizer,
                               const ChatFormat& format, const Learner* learner) {
  Crc32c configuration;
  add_configuration(configuration, files);
  std::string text = fmt::format("configuration {:08x}, tokenizer {:08x}", configuration.value(),
                                 tokenizer_fingerprint(tokenizer));
  if (!format.is_plain()) {
    std::string chat = format.general.source + format.tools.source;
    for (const auto& [name, id] : format.mentioned_tokens(tokenizer.data())) {
      chat += fmt::format(" {} {}", name, id);
    }
    text += fmt::format(", chat template {:08x}", crc32c(chat));
  }
  Crc32c tensors;
  int64_t count = 0;
  for_each_tensor(files, [&](const WeightSpec& weight, const StoredTensor& tensor) {
    if (learner != nullptr && learner->changes(weight)) return;
    add_tensor(tensors, files, tensor,
               [&](std::span<const uint8_t> bytes) { add_pages(tensors, bytes); });
    ++count;
  });
  if (count == 0) return text;
  const char* noun = learner == nullptr ? "tensor" : "frozen tensor";
  return text + fmt::format(", {} {:08x}", counted(count, noun), tensors.value());
}

}  // namespace jackscrew
