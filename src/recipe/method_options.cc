#include "recipe/method_options.h"

#include <fmt/format.h>

#include <string>

#include "base/choices.h"
#include "learners/learner.h"
#include "products/product.h"
#include "quant/format.h"
#include "quant/gguf_mixtures.h"
#include "quant/row_encoders.h"

namespace jackscrew {

namespace {

using enum OptionType;

// The names that `name_of` returns for the rows of a table, in order; rows with "" are left out.
template <class Table, class NameOf>
std::string words_of(const Table& table, const NameOf& name_of) {
  std::string words;
  for (const auto& row : table) {
    const std::string name = name_of(row);
    if (!name.empty()) words += (words.empty() ? "" : " ") + name;
  }
  return words;
}

// Formats that weights can be converted to: for any weight, or for linear layers only.
std::string storage_words(bool for_linears_only) {
  return words_of(all_formats(), [&](const Format* format) -> std::string {
    const bool wanted = format->can_encode() && format->for_linears_only() == for_linears_only;
    return wanted ? format->name() : "";
  });
}

// Formats that weights can be converted to only in files.
std::string file_storage_words() {
  return words_of(row_encoders(), [](const RowEncoder& encoder) -> std::string {
    return encoder.format->can_encode() ? "" : encoder.format->name();
  });
}

constexpr Choices kWeightPlaces("auto memory mmap",
                                std::array{WeightPlace::automatic, WeightPlace::memory,
                                           WeightPlace::mmap});
constexpr Choices kAttentions("own cudnn",
                              std::array{AttentionLibrary::own, AttentionLibrary::cudnn});

struct MethodWords {
  const std::string any_storage = storage_words(false);
  const std::string linear_storage = storage_words(true);
  const std::string file_storage = fmt::format("{} {}", file_storage_words(), gguf_mixture_names());
  const std::string storage =
      fmt::format("keep {} {} {}", any_storage, linear_storage, file_storage);
  const std::string storage_help = fmt::format(
      "format of the weights in memory: keep (as in the file) {}; for the linear "
      "layers of the blocks alone: {}; of the weights that merge and export write: keep {}, in a "
      "Hugging Face directory also nf4, in GGUF also {}",
      any_storage, linear_storage, any_storage, file_storage);
  const std::string products =
      "auto " + words_of(all_products(), [](const ProductEntry& entry) { return entry.name; });
  const std::string products_help =
      "precision of matrix products: auto (f32)" + products.substr(std::string("auto").size());
  const std::string optimizers =
      words_of(all_optimizers(), [](const OptimizerEntry& entry) { return entry.name; });
  const std::string optimizers_help = words_of(all_optimizers(), [](const OptimizerEntry& entry) {
    return fmt::format("{} ({})", entry.name, entry.help);
  });
  const std::string learners_help =
      fmt::format("what is trained: {}; empty: as the method says",
                  words_of(all_learners(), [](const LearnerEntry& entry) { return entry.name; }));
};

}  // namespace

std::span<const OptionSpec> method_options() {
  static const MethodWords kWords;
  static const OptionSpec kMethodOptions[] = {
      {.name = "method",
       .type = text,
       .default_text = "lora",
       .help = "preset of other options; those you set yourself win",
       .aliases = "finetuning_type",
       .affects_result = false},
      {.name = "storage",
       .type = text,
       .default_text = "keep",
       .help = kWords.storage_help.c_str(),
       .choices = kWords.storage.c_str()},
      {.name = "weights",
       .type = text,
       .default_text = "auto",
       .help =
           "where frozen weights live: memory; mmap (in the map of their file, on a CPU, as far as "
           "they are read as they lie there); auto (mmap, but memory in train)",
       .choices = kWeightPlaces.words,
       .affects_result = false},
      {.name = "product",
       .type = text,
       .default_text = "auto",
       .help = kWords.products_help.c_str(),
       .choices = kWords.products.c_str()},
      {.name = "product_exclude",
       .type = list,
       .default_text = "",
       .help = "linear layers multiplied in f32 whatever the product, by module or end of path: "
               "lm_head,down_proj,layers.0.*"},
      {.name = "attention",
       .type = text,
       .default_text = "own",
       .help = "attention kernels: own; cudnn: forward pass by cuDNN, on a GPU with product=bf16",
       .choices = kAttentions.words},
      {.name = "learner", .type = text, .default_text = "", .help = kWords.learners_help.c_str()},
      {.name = "optimizer",
       .type = text,
       .default_text = "adamw",
       .help = kWords.optimizers_help.c_str(),
       .aliases = "optim",
       .choices = kWords.optimizers.c_str()},
      {.name = "update",
       .type = text,
       .default_text = "after",
       .help = "when weights are updated: after backward, or fused into it, each as soon as its "
               "gradient is there (with full and galore, matrices then share the memory of one "
               "gradient, unless steps have several micro-batches)",
       .choices = "after fused"},
      {.name = "gradient_checkpointing",
       .type = boolean,
       .default_text = "auto",
       .help = "recompute activations in the backward pass: true, false, or auto (only if "
               "device_memory requires it)",
       .choices = "auto",
       .affects_result = false},
  };
  return kMethodOptions;
}

void MethodSettings::read(const OptionSet& options) {
  method = options.text("method");
  storage = options.text("storage");
  weights = kWeightPlaces[options.text("weights")];
  product = options.text("product");
  product_exclude = options.list("product_exclude");
  attention = kAttentions[options.text("attention")];
  learner = options.text("learner");
  optimizer = options.text("optimizer");
  fused_update = options.text("update") == "fused";
  if (!options.is_word("gradient_checkpointing")) {
    gradient_checkpointing = options.boolean("gradient_checkpointing");
  }
}

}  // namespace jackscrew
