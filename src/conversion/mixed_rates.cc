#include "conversion/mixed_rates.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "conversion/rate_choice.h"

namespace jackscrew {

void MixedRates::add(const WeightSpec& weight, const std::vector<RoundedSize>& ways) {
  Matrix matrix{weight.name, ways, 0};
  int64_t least = counted(ways.front());
  for (size_t i = 0; i < ways.size(); ++i) {
    if (ways[i].file_bytes > ways[matrix.chosen].file_bytes) matrix.chosen = i;
    least = std::min(least, counted(ways[i]));
  }
  places_[weight.name] = matrices_.size();
  matrices_.push_back(std::move(matrix));
  elements_ += static_cast<double>(weight.size());
  least_ = checked_add(least_, least);
}

int64_t MixedRates::limit_bytes() const {
  return limit_.memory_bytes.value_or(static_cast<int64_t>(limit_.bits * elements_ / 8.0));
}

void MixedRates::check() const {
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
              fmt::format("with all that is stored of them, the least is bits={:.3f}",
                          std::ceil(least * 1000.0) / 1000.0));
}

int64_t MixedRates::most_bytes() const {
  int64_t most = 0;
  double ratio = 0.0;  // the largest of bytes in files to those that count
  for (const Matrix& matrix : matrices_) {
    most = checked_add(most, matrix.ways[matrix.chosen].file_bytes);
    for (const RoundedSize& way : matrix.ways) {
      ratio =
          std::max(ratio, static_cast<double>(way.file_bytes) / static_cast<double>(counted(way)));
    }
  }
  return std::min(most, static_cast<int64_t>(ratio * static_cast<double>(limit_bytes())));
}

double MixedRates::bits() const {
  double bits = 0.0;
  for (const Matrix& matrix : matrices_) {
    bits += 8.0 * static_cast<double>(matrix.ways[matrix.chosen].file_bytes);
  }
  return bits / elements_;
}

QuantisationSettings MixedRates::settings() const {
  if (limit_.memory_bytes) {
    return {{"bytes left by device_memory", std::to_string(*limit_.memory_bytes)}};
  }
  return {{"bits", fmt::format("{}", limit_.bits)}};
}

void MixedRates::choose(const std::map<std::string, std::vector<double>>& costs) {
  std::vector<std::vector<RateOption>> items;
  for (const Matrix& matrix : matrices_) {
    const std::vector<double>& measured = costs.at(matrix.name);
    std::vector<RateOption>& options = items.emplace_back();
    for (size_t i = 0; i < matrix.ways.size(); ++i) {
      options.push_back({counted(matrix.ways[i]), measured.at(i)});
    }
  }
  const auto choice = cheapest_choice(items, limit_bytes());
  for (size_t i = 0; i < matrices_.size(); ++i) matrices_[i].chosen = choice->options[i];
}

}  // namespace jackscrew
