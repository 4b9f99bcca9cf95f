#include "recipe/conversion_options.h"

namespace jackscrew {

namespace {

using enum OptionType;

constexpr OptionSpec kConversionOptions[] = {
    {.name = "output",
     .type = text,
     .default_text = "",
     .help = "output file, for commands that write one; merge, export, quantize: or directory",
     .affects_result = false,
     .is_path = true},
    {.name = "format",
     .type = text,
     .default_text = "auto",
     .help =
         "what is written: hf (a Hugging Face directory), gguf (a file), gguf_adapter (a LoRA "
         "adapter by itself, for llama.cpp); auto: gguf where the output's name ends in .gguf; "
         "gptq, exl2: as quantize rounds to them, with its options; bnb: hf with storage=nf4, for "
         "bitsandbytes; quantize: gptq (its auto), exl2, gguf or bnb",
     .choices = "auto hf gguf gguf_adapter gptq exl2 bnb",
     .affects_result = false},
    {.name = "adapter_weight",
     .type = list,
     .default_text = "",
     .help = "for each adapter, how much of what it changes is taken: 1: all of it",
     .affects_result = false},
    {.name = "max_shard_size",
     .type = bytes,
     .default_text = "5GB",
     .help = "a Hugging Face directory has several files of weights where one would be larger",
     .min = 1,
     .affects_result = false},
    {.name = "max_merge_loss",
     .type = number,
     .default_text = "auto",
     .help = "with eval_data: nothing is written where the written model's loss is above that of "
             "model and adapters by more (nats); auto: any",
     .choices = "auto",
     .min = 0,
     .affects_result = false},
};

}  // namespace

std::span<const OptionSpec> conversion_options() {
  return kConversionOptions;
}

void ConversionSettings::read(const OptionSet& options) {
  output = options.text("output");
  format = options.text("format");
  // A negative weight subtracts what an adapter learned.
  adapter_weights = options.numbers("adapter_weight", -1000, 1000,
                                    "1: all of what the adapter changes, 0.5: half of it");
  max_shard_bytes = options.bytes("max_shard_size");
  if (!options.is_word("max_merge_loss")) max_merge_loss = options.number("max_merge_loss");
}

}  // namespace jackscrew
