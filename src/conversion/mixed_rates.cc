#include "conversion/mixed_rates.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "conversion/rate_choice.h"
#include "recipe/quantise_options.h"

namespace jackscrew {

size_t MixedRates::group_of(const WeightSpec& weight) const {
  if (!counts_memory()) return 0;
  const auto stage =
      std::ranges::upper_bound(limit_.stages, weight.layer, {}, &StageLimit::end_block);
  return static_cast<size_t>(stage - limit_.stages.begin());
}

void MixedRates::add(const WeightSpec& weight, const std::vector<RoundedSize>& ways) {
  const size_t at = group_of(weight);
  Group& group = groups_.at(at);
  Matrix matrix{weight.name, ways, 0};
  int64_t least = counted(ways.front());
  for (size_t i = 0; i < ways.size(); ++i) {
    if (ways[i].file_bytes > ways[matrix.chosen].file_bytes) matrix.chosen = i;
    least = std::min(least, counted(ways[i]));
  }
  places_[weight.name] = {at, group.matrices.size()};
  group.matrices.push_back(std::move(matrix));
  group.least = checked_add(group.least, least);
  elements_ += static_cast<double>(weight.size());
}

size_t MixedRates::of(const WeightSpec& weight) const {
  const Place& place = places_.at(weight.name);
  return groups_[place.group].matrices[place.index].chosen;
}

int64_t MixedRates::limit_bytes(size_t group) const {
  return counts_memory() ? limit_.stages[group].memory_bytes
                         : static_cast<int64_t>(limit_.bits * elements_ / 8.0);
}

void MixedRates::check() const {
  for (size_t i = 0; i < groups_.size(); ++i) {
    const int64_t least = groups_[i].least;
    if (least <= limit_bytes(i)) continue;
    if (counts_memory()) {
      throw Error(
          ErrorKind::does_not_fit,
          fmt::format("the blocks' matrices{} take {} in the fewest bits, and {} is left "
                      "for them",
                      groups_.size() > 1 ? fmt::format(" of stage {}", i) : "",
                      human_bytes(least, limit_bytes(i)), human_bytes(limit_bytes(i), least)),
          "raise device_memory, or take a smaller model or a shorter sequence_len");
    }
    const double bits = std::ceil(8.0 * static_cast<double>(least) / elements_ * 1000.0) / 1000.0;
    throw Error(
        ErrorKind::usage,
        fmt::format("no mixture of this model's matrices comes to bits={:g}", limit_.bits),
        fmt::format("with all that is stored of them, the least is bits={:.3f}{}", bits,
                    bits > kMostBits
                        ? ", more than bits can be: storage=q8_0 output=FILE.gguf needs no rate"
                        : ""));
  }
}

int64_t MixedRates::most_bytes(size_t group) const {
  int64_t most = 0;
  double ratio = 0.0;  // the largest of bytes in files to those that count
  for (const Matrix& matrix : groups_[group].matrices) {
    most = checked_add(most, matrix.ways[matrix.chosen].file_bytes);
    for (const RoundedSize& way : matrix.ways) {
      ratio =
          std::max(ratio, static_cast<double>(way.file_bytes) / static_cast<double>(counted(way)));
    }
  }
  return std::min(most, static_cast<int64_t>(ratio * static_cast<double>(limit_bytes(group))));
}

int64_t MixedRates::most_bytes() const {
  int64_t most = 0;
  for (size_t i = 0; i < groups_.size(); ++i) most = checked_add(most, most_bytes(i));
  return most;
}

double MixedRates::bits() const {
  double bits = 0.0;
  for (const Group& group : groups_) {
    for (const Matrix& matrix : group.matrices) {
      bits += 8.0 * static_cast<double>(matrix.ways[matrix.chosen].file_bytes);
    }
  }
  return bits / elements_;
}

QuantisationSettings MixedRates::settings() const {
  if (!counts_memory()) return {{"bits", fmt::format("{}", limit_.bits)}};
  QuantisationSettings settings;
  for (const StageLimit& stage : limit_.stages) {
    settings[fmt::format("bytes left by device_memory up to block {}", stage.end_block)] =
        std::to_string(stage.memory_bytes);
  }
  return settings;
}

void MixedRates::choose(const std::map<std::string, std::vector<double>>& costs,
                        const std::function<void()>& check) {
  for (size_t group = 0; group < groups_.size(); ++group) {
    std::vector<Matrix>& matrices = groups_[group].matrices;
    std::vector<std::vector<RateOption>> items;
    for (const Matrix& matrix : matrices) {
      // Where there is nothing to choose, nothing was measured.
      const bool has_choice = matrix.ways.size() > 1;
      std::vector<RateOption>& options = items.emplace_back();
      for (size_t i = 0; i < matrix.ways.size(); ++i) {
        options.push_back(
            {counted(matrix.ways[i]), has_choice ? costs.at(matrix.name).at(i) : 0.0});
      }
    }
    const auto choice = cheapest_choice(items, limit_bytes(group), check);
    for (size_t i = 0; i < matrices.size(); ++i) matrices[i].chosen = choice->options[i];
  }
}

}  // namespace jackscrew
