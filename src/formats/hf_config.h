// config.json of Hugging Face transformers, versions 4 and 5, for the architectures of
// model/config.h.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"

namespace jackscrew {

// Reads the text of a config.json; `where` (its path) begins every error. Members that are absent
// get the defaults of transformers' LlamaConfig, except the sizes, which must be there. The result
// is valid. Error(model) names whatever the program cannot compute: another architecture or
// activation, biases, dropout, another kind of rope, quantised weights.
ModelConfig parse_hf_config(const std::string& json_text, const std::string& where);

// The text of a config.json that transformers 4 and 5 both open as the same model. `torch_dtype` is
// the dtype of the weights beside it: "float32", "bfloat16" or "float16".
std::string write_hf_config(const ModelConfig& config, const std::string& torch_dtype);

// The text of a config.json whose head is a weight of its own.
std::string set_untied(const std::string& config);

// The text of a config.json with a quantization_config.
std::string add_quantization_config(const std::string& config, const nlohmann::json& quantization);

inline constexpr const char* kGenerationConfig = "generation_config.json";

// The text of the generation_config.json beside it: the special tokens.
std::string write_hf_generation_config(const ModelConfig& config);

// The tokens that end texts by the text of a generation_config.json; none where it says nothing.
std::vector<int64_t> parse_end_tokens(const std::string& text);

// The text of a generation_config.json in which `id` ends texts as well: `text` itself where it
// does already. nullopt where `text` is none.
std::optional<std::string> add_end_token(const std::string& text, int64_t id);

}  // namespace jackscrew
