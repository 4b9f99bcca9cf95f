#include "conversion/exl2_rounder.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "conversion/exl2_mixtures.h"
#include "conversion/exl2_rounding.h"
#include "conversion/rate_choice.h"
#include "model/weights.h"
#include "recipe/quantise_options.h"

namespace jackscrew {

namespace {

// The sizes of a block matrix in each of the mixtures, and the mixture chosen for it.
struct MixedMatrix {
  WeightSpec weight;
  std::vector<int64_t> sizes;  // that count against the limit, bytes
  int64_t most = 0;            // bytes in the files, at most
  size_t chosen = 0;           // the largest, until one is chosen

  Exl2Groups groups() const { return exl2_groups(exl2_mixtures()[chosen], weight.cols); }
};

class Exl2Rounder : public Rounder {
 public:
  Exl2Rounder(const ModelConfig& config, const Exl2Limit& limit, int64_t head_bits, double damping)
      : limit_(limit), head_bits_(head_bits), damping_(damping) {
    if (quantises_head()) head_ = exl2_head_mixture(head_bits);
    for (const WeightSpec& weight : weights_of(config, StageSpec::whole(config))) {
      if (weight.is_block_matrix()) add(weight);
    }
    check_limit();
  }

  bool rounds(const WeightSpec& weight) const override {
    return weight.is_block_matrix() || (quantises_head() && weight.module == "lm_head");
  }
  bool orders_by_activation() const override { return true; }
  bool compensates() const override { return true; }
  double damping() const override { return damping_; }

  std::vector<SafetensorsSpec> specs(const WeightSpec& weight) const override {
    return exl2_specs(weight, groups_of(weight));
  }
  int64_t most_bytes(const std::vector<WeightSpec>& weights) const override {
    int64_t blocks = 0, head = 0;
    for (const MixedMatrix& matrix : matrices_) blocks = checked_add(blocks, matrix.most);
    for (const WeightSpec& weight : weights) {
      if (!weight.is_block_matrix()) head += bytes_of(specs(weight));
    }
    // The limit may be one of memory, where matrices are not quite as large as in files.
    const auto limit = static_cast<int64_t>(largest_ratio_ * static_cast<double>(limit_bytes()));
    return checked_add(std::min(blocks, limit), head);
  }

  std::vector<TensorBytes> round(const MatrixToRound& m) const override {
    Exl2Matrix matrix = round_exl2(m.ops, m.memory, m.weight, m.w, m.u, groups_of(m.weight)).matrix;
    matrix.column_order = m.order;
    return exl2_tensors(m.weight, matrix);
  }

  QuantisationSettings settings() const override {
    return {{"format", "exl2"},
            {limit_.memory_bytes ? "bytes left by device_memory" : "bits",
             limit_.memory_bytes ? std::to_string(*limit_.memory_bytes)
                                 : fmt::format("{}", limit_.bits)},
            {"head_bits", std::to_string(head_bits_)},
            {"damp_percent", fmt::format("{}", damping_)}};
  }
  nlohmann::json config(int64_t sequences, int64_t sequence_len) const override {
    double bits = 0.0;
    for (const MixedMatrix& matrix : matrices_) {
      bits += 8.0 * static_cast<double>(exl2_file_bytes(matrix.weight, matrix.groups()));
    }
    return exl2_quantization_config({bits / elements_, head_bits_, sequences, sequence_len});
  }
  std::vector<std::string> notes(const std::vector<WeightSpec>&) const override { return {}; }

  bool measures() const override { return true; }

  std::vector<double> measure(const MatrixToRound& m) const override {
    std::vector<double> costs =
        mixture_errors(m.ops, m.memory, m.weight, m.w, m.u, exl2_mixtures());
    for (double& cost : costs) cost = m.energy > 0.0 ? cost / m.energy : 0.0;
    return costs;
  }

  void choose(const std::map<std::string, std::vector<double>>& costs) override {
    std::vector<std::vector<RateOption>> items;
    for (const MixedMatrix& matrix : matrices_) {
      const std::vector<double>& measured = costs.at(matrix.weight.name);
      std::vector<RateOption>& options = items.emplace_back();
      for (size_t i = 0; i < matrix.sizes.size(); ++i) {
        options.push_back({matrix.sizes[i], measured.at(i)});
      }
    }
    const auto choice = cheapest_choice(items, limit_bytes());
    for (size_t i = 0; i < matrices_.size(); ++i) matrices_[i].chosen = choice->options[i];
  }

 private:
  bool quantises_head() const { return head_bits_ != kExl2PlainHead; }

  void add(const WeightSpec& weight) {
    check_exl2_shape(weight);
    MixedMatrix matrix{weight, {}, 0, 0};
    for (const Exl2Mixture& mixture : exl2_mixtures()) {
      const Exl2Groups groups = exl2_groups(mixture, weight.cols);
      const int64_t bytes = exl2_file_bytes(weight, groups);
      matrix.sizes.push_back(limit_.memory_bytes ? exl2_memory_bytes(weight, groups) : bytes);
      if (bytes > matrix.most) {
        matrix.most = bytes;
        matrix.chosen = matrix.sizes.size() - 1;
      }
      largest_ratio_ = std::max(
          largest_ratio_, static_cast<double>(bytes) / static_cast<double>(matrix.sizes.back()));
    }
    places_[weight.name] = matrices_.size();
    elements_ += static_cast<double>(weight.size());
    least_ += std::ranges::min(matrix.sizes);
    matrices_.push_back(std::move(matrix));
  }

  int64_t limit_bytes() const {
    return limit_.memory_bytes.value_or(static_cast<int64_t>(limit_.bits * elements_ / 8.0));
  }

  void check_limit() const {
    if (least_ <= limit_bytes()) return;
    if (limit_.memory_bytes) {
      throw Error(ErrorKind::does_not_fit,
                  fmt::format("the blocks' matrices take {} in the fewest bits, and {} is left for "
                              "them",
                              human_bytes(least_), human_bytes(*limit_.memory_bytes)),
                  "raise device_memory, or take a smaller model or a shorter sequence_len");
    }
    const double least = 8.0 * static_cast<double>(least_) / elements_;
    throw Error(ErrorKind::usage,
                fmt::format("no mixture of this model's matrices comes to bits={:g}", limit_.bits),
                fmt::format("with scales and the order of columns, the least is bits={:.3f}",
                            std::ceil(least * 1000.0) / 1000.0));
  }

  Exl2Groups groups_of(const WeightSpec& weight) const {
    if (!weight.is_block_matrix()) return exl2_groups(head_, weight.cols);
    return matrices_[places_.at(weight.name)].groups();
  }

  Exl2Limit limit_;
  int64_t head_bits_;
  double damping_;
  Exl2Mixture head_;
  std::vector<MixedMatrix> matrices_;
  std::map<std::string, size_t> places_;  // weight name -> index into matrices_
  double elements_ = 0.0;
  int64_t least_ = 0;
  double largest_ratio_ = 0.0;  // of the bytes in files to those that count against the limit
};

}  // namespace

std::unique_ptr<Rounder> make_exl2_rounder(const Recipe& recipe, const ModelConfig& config,
                                           const Exl2Limit& limit) {
  const OptionSet& options = recipe.options;
  for (const char* name : {"group_size", "rounding", "desc_act", "sym"}) {
    if (!asks_for(options, name)) continue;
    throw Error(ErrorKind::usage, fmt::format("{} is of format=gptq: EXL2 does not have it", name),
                "leave it out; bits alone says what EXL2 is to take");
  }
  return std::make_unique<Exl2Rounder>(config, limit, options.integer("head_bits"),
                                       options.number("damp_percent"));
}

}  // namespace jackscrew
