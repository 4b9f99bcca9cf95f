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
  StorageRounder(const std::vector<ModelTensor>& tensors, std::string storage, bool compensates,
                 double damping)
      : storage_(std::move(storage)), compensates_(compensates), damping_(damping) {
    for (const ModelTensor& tensor : tensors) {
      const RowEncoder* encoder = find_row_encoder(*tensor.format);
      if (!tensor.spec.is_block_matrix() || encoder == nullptr || encoder->block_columns == 0) {
        continue;
      }
      encoders_[tensor.spec.name] = encoder;
    }
  }

  bool rounds(const WeightSpec& weight) const override { return encoders_.contains(weight.name); }
  bool orders_by_activation() const override { return false; }
  bool compensates() const override { return compensates_; }
  double damping() const override { return damping_; }

  std::vector<SafetensorsSpec> specs(const WeightSpec& weight) const override {
    const Format& format = *encoder_of(weight).format;
    return {{weight.name, "U8", {format.storage_bytes(weight.rows, weight.cols)}}};
  }
  int64_t most_bytes(const std::vector<WeightSpec>& weights) const override {
    int64_t bytes = 0;
    for (const WeightSpec& weight : weights) bytes = checked_add(bytes, bytes_of(specs(weight)));
    return bytes;
  }
  std::vector<TensorBytes> round(const MatrixToRound& m) const override {
    return {with_bytes(specs(m.weight)[0],
                       round_storage(m.ops, m.memory, m.weight, m.w, m.u, encoder_of(m.weight)))};
  }

  QuantisationSettings settings() const override {
    return {{"format", "gguf"},
            {"storage", storage_},
            {"rounding", compensates_ ? "gptq" : "nearest"},
            {"damp_percent", fmt::format("{}", damping_)}};
  }
  nlohmann::json config(int64_t, int64_t) const override { return {}; }
  std::vector<std::string> notes(const std::vector<WeightSpec>&) const override { return {}; }

 private:
  const RowEncoder& encoder_of(const WeightSpec& weight) const {
    return *encoders_.at(weight.name);
  }

  std::string storage_;
  bool compensates_;
  double damping_;
  std::map<std::string, const RowEncoder*> encoders_;  // by weight name
};

}  // namespace

void check_storage_rounding(const Recipe& recipe) {
  for (const char* name : {"bits", "head_bits", "group_size", "desc_act", "sym"}) {
    if (!asks_for(recipe.options, name)) continue;
    throw Error(ErrorKind::usage,
                fmt::format("{} is set, but in GGUF files storage determines it", name),
                "leave it out; storage=q4_k_m, for one, takes about 5 bits a weight");
  }
  if (recipe.storage == "keep") {
    throw Error(ErrorKind::usage, "quantize into a GGUF file needs a storage",
                "storage=q4_k_m, say; jackscrew quantize --help names all");
  }
  check_storage(ModelFormat::gguf, recipe.storage);
}

std::unique_ptr<Rounder> make_storage_rounder(const Recipe& recipe,
                                              const std::vector<ModelTensor>& tensors) {
  return std::make_unique<StorageRounder>(tensors, recipe.storage,
                                          recipe.options.text("rounding") == "gptq",
                                          recipe.options.number("damp_percent"));
}

}  // namespace jackscrew
