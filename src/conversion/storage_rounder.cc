#include "conversion/storage_rounder.h"

#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "conversion/storage_rounding.h"
#include "recipe/quantise_options.h"

namespace jackscrew {

namespace {

class StorageRounder : public Rounder {
 public:
  StorageRounder(const std::vector<ModelTensor>& tensors, QuantisationSettings settings,
                 bool compensates, double damping)
      : settings_(std::move(settings)), compensates_(compensates), damping_(damping) {
    std::map<int64_t, int64_t> uneven;  // matrix width -> number of matrices
    for (const auto& [weight, format] : tensors) {
      const BlockRounding rounding = block_rounding(*format);
      if (!weight.is_block_matrix() || rounding.round == nullptr) continue;
      if (weight.cols % rounding.columns == 0) {
        formats_[weight.name] = format;
      } else {
        ++uneven[weight.cols];
      }
    }
    for (const auto& [cols, count] : uneven) {
      notes_.push_back(
          fmt::format("{} with rows of {} elements: rounded to nearest, since blocks "
                      "do not end where rows do",
                      counted(count, "matrix", "matrices"), cols));
    }
  }

  bool rounds(const WeightSpec& weight) const override { return formats_.contains(weight.name); }
  bool orders_by_activation() const override { return false; }
  bool compensates() const override { return compensates_; }
  double damping() const override { return damping_; }

  std::vector<SafetensorsSpec> specs(const WeightSpec& weight) const override {
    return {{weight.name, "U8", {format_of(weight).storage_bytes(weight.rows, weight.cols)}}};
  }
  int64_t most_bytes(const std::vector<WeightSpec>& weights) const override {
    int64_t bytes = 0;
    for (const WeightSpec& weight : weights) bytes = checked_add(bytes, bytes_of(specs(weight)));
    return bytes;
  }
  std::vector<TensorBytes> round(const MatrixToRound& m) const override {
    return {with_bytes(specs(m.weight)[0],
                       round_storage(m.ops, m.memory, m.weight, m.w, m.u, format_of(m.weight)))};
  }

  QuantisationSettings settings() const override { return settings_; }
  nlohmann::json config(int64_t, int64_t) const override { return {}; }
  std::vector<std::string> notes(const std::vector<WeightSpec>&) const override { return notes_; }

 private:
  const Format& format_of(const WeightSpec& weight) const { return *formats_.at(weight.name); }

  QuantisationSettings settings_;
  bool compensates_;
  double damping_;
  std::map<std::string, const Format*> formats_;  // by weight name
  std::vector<std::string> notes_;
};

// "gguf" or "hf", as format has it.
const char* name_of(ModelFormat files) {
  return files == ModelFormat::gguf ? "gguf" : "hf";
}

// Whether any weight would be rounded.
bool is_quantised(const std::string& storage) {
  const auto formats = all_formats();
  const auto named = std::ranges::find(formats, storage, &Format::name);
  return named == formats.end() || block_rounding(**named).round != nullptr;
}

}  // namespace

void check_storage_rounding(const Recipe& recipe, ModelFormat files) {
  const char* format = name_of(files);
  for (const char* name : {"bits", "head_bits", "group_size", "desc_act", "sym"}) {
    if (!asks_for(recipe.options, name)) continue;
    throw Error(ErrorKind::usage,
                fmt::format("{} is set, but with format={} storage determines it", name, format),
                "leave it out; a storage, such as q4_k_m, has a number of bits of its own");
  }
  const char* some = files == ModelFormat::gguf ? "storage=q4_k_m, for one" : "storage=nf4";
  if (recipe.storage == "keep") {
    throw Error(ErrorKind::usage, fmt::format("format={} needs a storage to quantize to", format),
                some);
  }
  check_storage(files, recipe.storage);
  if (is_quantised(recipe.storage)) return;
  throw Error(ErrorKind::usage, fmt::format("storage={} is not quantised", recipe.storage),
              fmt::format("export writes it; quantize writes {}", some));
}

std::unique_ptr<Rounder> make_storage_rounder(const Recipe& recipe, ModelFormat files,
                                              const std::vector<ModelTensor>& tensors) {
  const std::string& rounding = recipe.options.text("rounding");
  const double damping = recipe.options.number("damp_percent");
  return std::make_unique<StorageRounder>(
      tensors,
      QuantisationSettings{{"format", name_of(files)},
                           {"storage", recipe.storage},
                           {"rounding", rounding},
                           {"damp_percent", fmt::format("{}", damping)}},
      rounding == "gptq", damping);
}

}  // namespace jackscrew
