// Reads a model of the Llama family from a GGUF file: configuration, tokenizer, and tensors under
// their Hugging Face names.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf.h"
#include "model/config.h"
#include "quant/stored_tensor.h"

namespace jackscrew {

// The hyper-parameters of a file whose general.architecture is "llama", "qwen2", "qwen3" or
// "smollm3", from its own keys ("llama.block_count") and its tensors. The result is valid.
// Embeddings are tied when there is no output.weight. Error(model) names whatever the program
// cannot compute: another architecture, experts, partial rotation, other rope scaling, a split
// file.
ModelConfig gguf_config(const GgufFile& file);

// The tokenizer of a file, unprocessed.
struct GgufTokenizerMetadata {
  std::string model;  // "gpt2", "llama"; empty when the file has no tokenizer
  std::string pre;    // the pre-tokenizer's name; may be empty
  std::vector<std::string> tokens;
  std::vector<int64_t>
      token_types;  // one per token (1 normal, 3 control, 4 user-defined ...), or none
  std::vector<std::string> merges;  // "left right"
  std::vector<double> scores;       // one per token, or none
  int64_t bos_id = -1;              // -1: none, as below
  // Each of the three ends a text.
  int64_t eos_id = -1;
  int64_t eot_id = -1;  // end of turn, where that is another token
  int64_t eom_id = -1;  // end of a message that a tool's answer follows: Llama 3.1's <|eom_id|>
  int64_t unk_id = -1;
  int64_t pad_id = -1;
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::optional<bool> add_space_prefix;
  std::string chat_template;
  std::string tool_template;  // for conversations with tools
};

// Throws Error(model) when the lists differ in length or an id is outside them.
GgufTokenizerMetadata gguf_tokenizer(const GgufFile& file);

// The weights of a GGUF file, under their Hugging Face names.
class GgufSource : public WeightSource {
 public:
  // Throws Error(model) for a file that gguf_config() refuses, and for a tensor that its
  // architecture does not have.
  explicit GgufSource(const fs::path& path);

  const GgufFile& file() const { return file_; }
  const ModelConfig& config() const { return config_; }

  // Throws Error(model) when the tensor is stored in a format that is not supported.
  const StoredTensor* find(std::string_view name) const override;
  std::vector<std::string> names() const override;
  void release(const StoredTensor& tensor) const override;
  std::string file_type() const override;

 private:
  struct Slot {
    StoredTensor tensor;
    const GgufTensor* stored;
  };

  GgufFile file_;
  ModelConfig config_;
  std::map<std::string, Slot, std::less<>> slots_;
};

// The divisor that Llama 3.1 applies to a rotary frequency; see RopeScaling. Files have it for each
// pair of a head.
double llama3_factor(double frequency, const RopeScaling& scaling);

}  // namespace jackscrew
