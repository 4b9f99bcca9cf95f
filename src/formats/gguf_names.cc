#include "formats/gguf_names.h"

#include "base/error.h"

namespace jackscrew {

const GgufArchitecture& gguf_architecture(const Architecture& architecture) {
  for (const GgufArchitecture& known : kGgufArchitectures) {
    if (architecture.name == std::string_view(known.architecture)) return known;
  }
  return kGgufArchitectures[0];
}

std::string gguf_name(const WeightSpec& weight) {
  for (const GgufName& pair : kGgufModelNames) {
    if (weight.name == pair.hf) return pair.gguf;
  }
  const std::string prefix = fmt::format("model.layers.{}.", weight.layer);
  for (const GgufName& pair : kGgufLayerNames) {
    if (weight.name == prefix + pair.hf) return fmt::format("blk.{}.{}", weight.layer, pair.gguf);
  }
  fail(ErrorKind::model, "GGUF has no place for tensor {}", weight.name);
}

int64_t gguf_interleaved_heads(const ModelConfig& config, std::string_view weight) {
  if (!gguf_architecture(*config.architecture).interleaved) return 0;
  if (weight.ends_with(".q_proj.weight")) return config.num_attention_heads;
  return weight.ends_with(".k_proj.weight") ? config.num_key_value_heads : 0;
}

}  // namespace jackscrew
