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

// Parses the text of a config.json; every error begins with `where` (its path). Absent members get
// the defaults of transformers' LlamaConfig, except the sizes, which must be present. The result is
// valid. Throws Error(model) naming whatever the program cannot compute: another architecture or
// activation, biases, dropout, another kind of rope, weights quantised by an unknown method.
ModelConfig parse_hf_config(const std::string& json_text, const std::string& where);

// Returns the text of a config.json that transformers 4 and 5 both open as the same model.
// `torch_dtype` is the dtype of the weights beside it: "float32", "bfloat16" or "float16".
std::string write_hf_config(const ModelConfig& config, const std::string& torch_dtype);

// The text of a config.json with tie_word_embeddings set to false.
std::string set_untied(const std::string& config);

// The text of a config.json with a quantization_config added.
std::string add_quantization_config(const std::string& config, const nlohmann::json& quantization);

inline constexpr const char* kGenerationConfig = "generation_config.json";

// The text of the generation_config.json beside it: the special tokens.
std::string write_hf_generation_config(const ModelConfig& config);

// The end-of-text tokens that the text of a generation_config.json names; none if it names none.
std::vector<int64_t> parse_end_tokens(const std::string& text);

// The text of a generation_config.json with `id` added to its end-of-text tokens; `text` itself if
// `id` is one already. nullopt where `text` is no JSON object.
std::optional<std::string> add_end_token(const std::string& text, int64_t id);

}  // namespace jackscrew
