#include "formats/peft_prompt.h"

#include "base/error.h"
#include "formats/shape.h"

namespace jackscrew {

namespace {

constexpr const char* kPrompt = "prompt_embeddings";  // [num_virtual_tokens, token_dim]

void read_prompt_settings(const JsonFields& fields, const nlohmann::ordered_json&,
                          PeftAdapter& adapter) {
  const std::string& where = fields.where();
  const int64_t tokens = fields.integer("num_virtual_tokens");
  if (tokens <= 0) {
    fail(ErrorKind::model, "{}: num_virtual_tokens = {} is not positive", where, tokens);
  }
  adapter.settings = {{"num_virtual_tokens", tokens}};
  if (const int64_t parts = fields.integer("num_transformer_submodules", 1); parts != 1) {
    fail(ErrorKind::model, "{}: num_transformer_submodules = {} is not of a decoder", where, parts);
  }
}

void read_prompt_tensors(const std::string& where, PeftAdapter& adapter) {
  const auto tokens = adapter.settings["num_virtual_tokens"].get<int64_t>();
  for (const PeftTensor& tensor : adapter.tensors) {
    if (tensor.name == kPrompt) continue;
    throw Error(ErrorKind::model, fmt::format("{}: tensor {} is not supported", where, tensor.name),
                fmt::format("a soft prompt has one: {}", kPrompt));
  }
  const PeftTensor& prompt = adapter.tensors.front();
  if (prompt.shape.size() != 2 || prompt.shape[0] != tokens) {
    fail(ErrorKind::model, "{}: tensor {} of shape {} is not of {} virtual tokens", where, kPrompt,
         shape_text(prompt.shape), tokens);
  }
  adapter.options = {
      {.name = "prompt_tokens", .value = std::to_string(tokens)},
      // A prompt that is loaded is not begun again.
      {.name = "prompt_init_text", .accepts_any = true},
  };
}

}  // namespace

const PeftType kPeftPrompt{"PROMPT_TUNING", "prompt", "", read_prompt_settings,
                           read_prompt_tensors};

}  // namespace jackscrew
