#include "recipe/model_options.h"

#include "base/error.h"
#include "text/chat/chat_format.h"

namespace jackscrew {

namespace {

using enum OptionType;

constexpr OptionSpec kModelOptions[] = {
    {.name = "model",
     .type = text,
     .default_text = "",
     .help = "HF model directory, GGUF file, config.json, or a named shape such as llama-9m",
     .aliases = "model_name_or_path base_model",
     .is_path = true},
    {.name = "adapter",
     .type = list,
     .default_text = "",
     .help = "adapter to apply to the model: a PEFT directory with LoRA, DoRA or a soft prompt; "
             "merge, export and quantize take several",
     .aliases = "adapter_name_or_path",
     .is_path = true},
    {.name = "init",
     .type = text,
     .default_text = "pretrained",
     .help = "initial weights: pretrained (the model's own) or random (from scratch)",
     .choices = "pretrained random"},
    {.name = "checkpoint_dtype",
     .type = text,
     .default_text = "f32",
     .help =
         "dtype of weights that are frozen or updated in place, with init=random, as a checkpoint "
         "would have it: f32 bf16 f16",
     .choices = "f32 bf16 f16"},
    {.name = "tokenizer",
     .type = text,
     .default_text = "auto",
     .help = "auto: the model's own; bytes: one token per byte; or the path of one (directory or "
             "file)",
     .is_path = true},
    {.name = "chat_template",
     .type = text,
     .default_text = "auto",
     .help = "auto: the model's own; plain; chatml llama2 llama3 mistral zephyr alpaca; or a file "
             "X.jinja",
     .aliases = "template"},
    {.name = "chat_date",
     .type = text,
     .default_text = "today",
     .help = "date for chat templates that print one: today, or YYYY-MM-DD"},
};

}  // namespace

std::span<const OptionSpec> model_options() {
  return kModelOptions;
}

void ModelSettings::read(const OptionSet& options) {
  model = options.text("model");
  adapters = options.list("adapter");
  if (!adapters.empty()) adapter = adapters.front();
  random_init = options.text("init") == "random";
  checkpoint_dtype = options.text("checkpoint_dtype");
  tokenizer = options.text("tokenizer");
  chat_template = options.text("chat_template");
  require_chat_template(chat_template);
  chat_date = parse_chat_date(options.text("chat_date"));
  if (random_init && !adapter.empty()) {
    throw Error(ErrorKind::usage, "init is random, but an adapter is given",
                "an adapter needs its own model");
  }
  if (checkpoint_dtype != "f32" && !random_init) {
    throw Error(ErrorKind::usage,
                "checkpoint_dtype is of weights without a file, and init is not random",
                "storage sets what weights from a file are kept in");
  }
}

}  // namespace jackscrew
