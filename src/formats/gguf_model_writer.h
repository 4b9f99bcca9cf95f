// Writes a model of the Llama family as a GGUF file; the counterpart of gguf_llama.h.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/gguf_llama.h"
#include "formats/model_writer.h"

namespace jackscrew {

// A model of the Llama family as llama.cpp opens it.
struct GgufModel {
  ModelConfig config;
  std::string name;                        // for display
  GgufTokenizerMetadata tokenizer;         // without tokens: the file gets no tokenizer
  std::optional<uint32_t> file_type = {};  // a mixture's; nullopt: of most of the bytes, if any
  // The file of which this is the model, with other weights, or null: its name goes before `name`,
  // and what it says of author, license and the like is kept.
  const GgufFile* from = nullptr;
};

// Throws what the writer below does for a configuration that GGUF has no place for.
void check_gguf_config(const ModelConfig& config);

// Writes the configuration, the tokenizer (padded to the model's vocabulary with unused tokens)
// and, weight by weight, `tensors`. Throws Error(model) naming what GGUF cannot hold: dynamic rope
// scaling, YaRN with truncate=false, in another architecture than "llama" scaling as Llama 3 has it
// and a window, a window of some blocks only, blocks without rotary positions other than every
// fourth, a number beyond 32 bits, a format without a ggml type.
std::unique_ptr<ModelWriter> make_gguf_model_writer(const fs::path& path, const GgufModel& model,
                                                    const std::vector<ModelTensor>& tensors);

// The size of the file that such a writer writes. Throws as that does.
int64_t gguf_model_bytes(const GgufModel& model, const std::vector<ModelTensor>& tensors);

}  // namespace jackscrew
