#include "conversion/exl2_rounder.h"

#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "conversion/exl2_mixtures.h"
#include "conversion/exl2_rounding.h"
#include "model/weights.h"

namespace jackscrew {

namespace {

class Exl2Rounder : public LayoutRounder {
 public:
  Exl2Rounder(const ModelConfig& config, const RateLimit& limit, int64_t head_bits, double damping)
      : head_bits_(head_bits), damping_(damping), rates_(limit) {
    if (quantises_head()) head_ = exl2_head_mixture(head_bits);
    for (const WeightSpec& weight : weights_of(config, StageSpec::whole(config))) {
      if (!weight.is_block_matrix()) continue;
      std::vector<RoundedSize> ways;
      for (const Exl2Mixture& mixture : exl2_mixtures()) {
        const Exl2Groups groups = exl2_groups(mixture, weight.cols);
        ways.push_back({exl2_file_bytes(weight, groups), exl2_memory_bytes(weight, groups)});
      }
      rates_.add(weight, ways);
    }
    rates_.check();
  }

  bool rounds(const WeightSpec& weight) const override {
    return weight.is_block_matrix() || (quantises_head() && weight.module == "lm_head");
  }
  ColumnOrder column_order() const override { return ColumnOrder::by_activation; }
  bool compensates() const override { return true; }
  double damping() const override { return damping_; }

  std::vector<SafetensorsSpec> specs(const WeightSpec& weight) const override {
    return exl2_specs(weight, groups_of(weight));
  }
  int64_t most_bytes(const std::vector<WeightSpec>& weights) const override {
    int64_t head = 0;
    for (const WeightSpec& weight : weights) {
      if (!weight.is_block_matrix()) head = checked_add(head, bytes_of(specs(weight)));
    }
    return checked_add(rates_.most_bytes(), head);
  }

  std::vector<TensorBytes> round(const MatrixToRound& m) const override {
    Exl2Matrix matrix = round_exl2(m.ops, m.memory, m.weight, m.w, m.u, groups_of(m.weight)).matrix;
    matrix.column_order = m.order;
    return exl2_tensors(m.weight, matrix);
  }
  int64_t round_bytes(const WeightSpec& weight) const override {
    return exl2_rounding_bytes(weight.rows);
  }
  int64_t held_bytes(const WeightSpec& weight) const override {
    return exl2_held_bytes(weight, groups_of(weight));
  }

  QuantisationSettings settings() const override {
    QuantisationSettings settings = rates_.settings();
    settings.insert({{"format", "exl2"}, {"head_bits", std::to_string(head_bits_)}});
    return settings;
  }
  nlohmann::json config(int64_t sequences, int64_t sequence_len) const override {
    return exl2_quantization_config({rates_.bits(), head_bits_, sequences, sequence_len});
  }
  std::vector<std::string> notes(const std::vector<WeightSpec>&) const override { return {}; }

  bool measures() const override { return true; }

  std::vector<double> measure(const MatrixToRound& m) const override {
    std::vector<double> costs =
        mixture_errors(m.ops, m.memory, m.weight, m.w, m.u, exl2_mixtures());
    for (double& cost : costs) cost = m.energy > 0.0 ? cost / m.energy : 0.0;
    return costs;
  }
  int64_t measure_bytes(const WeightSpec& weight) const override {
    return booked_f32(weight.rows, weight.cols) + round_bytes(weight);
  }

  void choose(const std::map<std::string, std::vector<double>>& costs,
              const std::function<void()>& check) override {
    rates_.choose(costs, check);
  }

 private:
  bool quantises_head() const { return head_bits_ != kExl2PlainHead; }

  Exl2Groups groups_of(const WeightSpec& weight) const {
    return exl2_groups(weight.is_block_matrix() ? exl2_mixtures()[rates_.of(weight)] : head_,
                       weight.cols);
  }

  int64_t head_bits_;
  double damping_;
  Exl2Mixture head_;
  MixedRates rates_;
};

}  // namespace

std::vector<FormatPointer> exl2_held_formats(const WeightSpec& weight, int64_t head_bits,
                                             const std::string& rest) {
  std::vector<FormatPointer> formats;
  if (weight.is_block_matrix()) {
    for (const Exl2Mixture& mixture : exl2_mixtures()) {
      formats.push_back(exl2_format(exl2_groups(mixture, weight.cols)));
    }
  } else if (weight.module == "lm_head" && head_bits != kExl2PlainHead) {
    formats.push_back(exl2_format(exl2_groups(exl2_head_mixture(head_bits), weight.cols)));
  } else {
    formats.push_back(unowned(find_format(rest)));
  }
  return formats;
}

std::unique_ptr<LayoutRounder> make_exl2_rounder(const Recipe& recipe, const ModelConfig& config,
                                                 const RateLimit& limit) {
  for (const char* name : {"group_size", "rounding", "desc_act", "sym"}) {
    if (!recipe.options.asks_for(name)) continue;
    throw Error(ErrorKind::usage, fmt::format("format=exl2 has no {}", name),
                "leave it out; bits alone says what EXL2 is to take");
  }
  return std::make_unique<Exl2Rounder>(config, limit, recipe.head_bits, recipe.damp_percent);
}

}  // namespace jackscrew
