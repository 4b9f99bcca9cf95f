#include "conversion/gptq_rounder.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "conversion/gptq_rounding.h"

namespace jackscrew {

namespace {

class GptqRounder : public LayoutRounder {
 public:
  GptqRounder(const GptqLayout& layout, bool compensates, double damping)
      : layout_(layout), compensates_(compensates), damping_(damping) {}

  bool rounds(const WeightSpec& weight) const override { return weight.is_block_matrix(); }
  ColumnOrder column_order() const override {
    return layout_.activation_order ? ColumnOrder::by_activation : ColumnOrder::own;
  }
  bool compensates() const override { return compensates_; }
  double damping() const override { return damping_; }

  std::vector<SafetensorsSpec> specs(const WeightSpec& weight) const override {
    return gptq_specs(weight, layout_);
  }
  std::vector<TensorBytes> round(const MatrixToRound& m) const override {
    return gptq_tensors(m.weight, layout_,
                        round_gptq(m.ops, m.memory, m.weight, m.w, m.u, m.order, layout_));
  }
  int64_t round_bytes(const WeightSpec& weight) const override {
    return gptq_rounding_bytes(weight.rows);
  }
  int64_t held_bytes(const WeightSpec& weight) const override {
    return gptq_held_bytes(weight, layout_);
  }

  QuantisationSettings settings() const override {
    return {{"format", "gptq"},
            {"bits", std::to_string(layout_.bits)},
            {"group_size", std::to_string(layout_.group_size)},
            {"desc_act", layout_.activation_order ? "true" : "false"},
            {"sym", layout_.symmetric ? "true" : "false"},
            {"rounding", compensates_ ? "gptq" : "nearest"}};
  }
  nlohmann::json config(int64_t, int64_t) const override {
    return gptq_quantization_config(layout_, damping_);
  }
  std::vector<std::string> notes(const std::vector<WeightSpec>& weights) const override {
    std::map<int64_t, int64_t> uneven;  // matrix width -> number of matrices
    const int64_t group = layout_.group_size;
    for (const WeightSpec& weight : weights) {
      if (group > 0 && weight.cols % group != 0) ++uneven[weight.cols];
    }
    std::vector<std::string> notes;
    for (const auto& [cols, count] : uneven) {
      notes.push_back(
          fmt::format("groups of {} do not divide the {} inputs of {}: some programs refuse that",
                      group, cols, counted(count, "matrix", "matrices")));
    }
    return notes;
  }

 private:
  GptqLayout layout_;
  bool compensates_;
  double damping_;
};

}  // namespace

std::unique_ptr<LayoutRounder> make_gptq_rounder(const Recipe& recipe) {
  if (recipe.options.asks_for("head_bits")) {
    throw Error(ErrorKind::usage, "head_bits is set, but the head of GPTQ's files is not quantised",
                "leave it out, or write format=exl2");
  }
  if (recipe.bits != std::floor(recipe.bits)) {
    throw Error(ErrorKind::usage, fmt::format("GPTQ has no codes of {:g} bits", recipe.bits),
                "bits=2, 3, 4 or 8; format=exl2 has any rate");
  }
  const GptqLayout layout{static_cast<int64_t>(recipe.bits), recipe.group_size, recipe.desc_act,
                          recipe.sym};
  check_gptq_layout(layout);
  return std::make_unique<GptqRounder>(layout, recipe.compensates, recipe.damp_percent);
}

}  // namespace jackscrew
