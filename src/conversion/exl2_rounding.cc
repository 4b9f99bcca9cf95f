#include "conversion/exl2_rounding.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "conversion/column_order.h"
#include "conversion/exl2_tile.h"
#include "conversion/value_checks.h"

namespace jackscrew {

namespace {

// Tried fractions of the scale_max that just reaches the group's largest value. Near the top, scale
// codes by themselves take steps of an eighth; these fractions lie between.
constexpr float kScaleShares[kTriedScales] = {1.0f, 0.96f, 0.92f, 0.88f};
// Keeps f16(scale_max / 256), the scale of code 0, above 0.
constexpr float kLeastScaleMax = 0x1p-16f;

// Rounds the groups of a matrix, one after another.
class GroupRounding {
 public:
  GroupRounding(Ops& ops, Memory& memory, const WeightSpec& weight, const Tensor& w,
                const Tensor& u, Exl2Rounding& out)
      : ops_(ops),
        kernels_(ops.isa() == IsaLevel::v3 ? v3::kExl2Kernels : v4::kExl2Kernels),
        weight_(weight),
        w_(w),
        u_(u),
        out_(out),
        tiles_(ceil_div(w.rows(), kernels_.tile_rows)),
        cost_(column_costs(u, w.cols())),
        row_absmax_(static_cast<size_t>(w.rows())),
        tried_codes_(static_cast<size_t>(w.rows() * kTriedScales)),
        tried_costs_(static_cast<size_t>(tiles_ * kTriedScales)),
        sums_(static_cast<size_t>(w.rows()), 0.0),
        errors_(memory, Purpose::workspace, DType::f32, {w.rows(), kTileColumns}) {}

  // Rounds group g, whose stored columns begin at `first`, as part of the block of columns [begin,
  // end).
  void round(size_t g, int64_t first, int64_t begin, int64_t end) {
    const auto [count, bits] = out_.matrix.groups[g];
    const float lowest = -static_cast<float>(1 << (bits - 1));
    uint8_t* const scale_codes =
        out_.matrix.scale_codes.data() + static_cast<int64_t>(g) * w_.rows();
    Exl2Tile tile{.w = w_.data<float>(),
                  .cost = cost_.data(),
                  .row_absmax = row_absmax_.data(),
                  .rows = w_.rows(),
                  .cols = w_.cols(),
                  .first = first,
                  .count = count,
                  .next_count = first + count < end ? out_.matrix.groups[g + 1].columns : 0,
                  .lowest = lowest,
                  .scale_max_256th = {},
                  .tried_codes = tried_codes_.data(),
                  .tried_costs = tried_costs_.data(),
                  .begin = begin,
                  .end = end,
                  .chosen = 0,
                  .u = u_.data<float>(),
                  .codes = out_.matrix.codes.data(),
                  .scale_codes = scale_codes,
                  .errors = errors_.view().data<float>(),
                  .sums = sums_.data()};
    if (first == begin) for_tiles(kernels_.find_row_absmax, tile);
    const float absmax = *std::max_element(row_absmax_.begin(), row_absmax_.end());
    std::array<f16, kTriedScales> scale_max;
    for (size_t i = 0; i < scale_max.size(); ++i) {
      const float reaching = absmax / (-0.5f - lowest) * kScaleShares[i];
      // f16 must hold the scale times any code, more than what readers ask for. The negation also
      // catches infinity.
      if (!(reaching * (-2.0f * lowest - 1.0f) <= kLargestF16)) fail_beyond_f16(weight_, "EXL2");
      scale_max[i] = to_f16(std::max(reaching, kLeastScaleMax));
      tile.scale_max_256th[i] = to_float(to_f16(to_float(scale_max[i]) * 0x1p-8f));
    }
    for_tiles(kernels_.try_scales, tile);
    tile.chosen = best_share();
    out_.matrix.scale_max[g] = scale_max[static_cast<size_t>(tile.chosen)];
    for_tiles(kernels_.round, tile);
    out_.group_errors.push_back(std::accumulate(sums_.begin(), sums_.end(), 0.0));
    std::fill(sums_.begin(), sums_.end(), 0.0);
  }

  // Propagates the errors of a block's rounded columns to the columns after it.
  void end_block(int64_t begin, int64_t end) {
    propagate_errors(ops_, errors_.view(), u_, w_, begin, end);
  }

 private:
  // A task takes several tiles, so that it is worth handing out.
  template <class Kernel>
  void for_tiles(const Kernel& kernel, const Exl2Tile& tile) {
    constexpr int64_t kTaskTiles = 4;
    parallel_for(ops_.threads(), ceil_div(tiles_, kTaskTiles), [&](int64_t task, int) {
      const int64_t last = std::min(tiles_, (task + 1) * kTaskTiles);
      for (int64_t i = task * kTaskTiles; i < last; ++i) kernel(tile, i);
    });
  }
  // Sums in the order of tiles, so that the result does not depend on threads.
  int64_t best_share() const {
    std::array<double, kTriedScales> sums = {};
    for (size_t i = 0; i < tried_costs_.size(); ++i) sums[i % sums.size()] += tried_costs_[i];
    return std::min_element(sums.begin(), sums.end()) - sums.begin();
  }

  Ops& ops_;
  const Exl2Kernels& kernels_;
  const WeightSpec& weight_;
  const Tensor& w_;
  const Tensor& u_;
  Exl2Rounding& out_;
  int64_t tiles_;
  std::vector<float> cost_, row_absmax_;  // [cols], [rows]
  std::vector<uint8_t> tried_codes_;      // [rows, kTriedScales]
  std::vector<double> tried_costs_;       // [tiles, kTriedScales]
  std::vector<double> sums_;              // [rows], of a group
  OwnedTensor errors_;                    // f32 [rows, kTileColumns], of a block
};

}  // namespace

Exl2Rounding round_exl2(Ops& ops, Memory& memory, const WeightSpec& weight, const Tensor& w,
                        const Tensor& u, const Exl2Groups& groups) {
  const int64_t rows = w.rows(), cols = w.cols();
  check_finite(weight, w);
  Exl2Rounding out;
  out.matrix.rows = rows;
  out.matrix.cols = cols;
  out.matrix.groups = groups;
  out.matrix.codes.resize(static_cast<size_t>(checked_mul(rows, cols)));
  out.matrix.scale_codes.resize(groups.size() * static_cast<size_t>(rows));
  out.matrix.scale_max.resize(groups.size());
  out.group_errors.reserve(groups.size());
  GroupRounding rounding(ops, memory, weight, w, u, out);
  size_t g = 0;
  for (int64_t begin = 0; begin < cols;) {
    size_t last = g;
    int64_t end = begin;  // as many whole groups as fit
    while (last < groups.size() &&
           (last == g || end + groups[last].columns - begin <= kTileColumns)) {
      end += groups[last++].columns;
    }
    for (int64_t first = begin; g < last; first += groups[g++].columns) {
      rounding.round(g, first, begin, end);
    }
    rounding.end_block(begin, end);
    begin = end;
  }
  return out;
}

std::vector<double> mixture_errors(Ops& ops, Memory& memory, const WeightSpec& weight,
                                   const Tensor& w, const Tensor& u,
                                   std::span<const Exl2Mixture> mixtures) {
  const OwnedTensor rounded(memory, Purpose::workspace, DType::f32, {w.rows(), w.cols()});
  // The errors of each group, keyed by (group size, bits) of the matrix rounded uniformly that way.
  std::map<std::pair<int64_t, int64_t>, std::vector<double>> known;
  const auto errors_of = [&](int64_t bits, int64_t group_size) -> const std::vector<double>& {
    std::vector<double>& errors = known[{group_size, bits}];
    if (errors.empty()) {
      ops.copy(rounded.view(), w);
      errors = round_exl2(ops, memory, weight, rounded.view(), u,
                          exl2_groups({bits, bits, 100, group_size}, w.cols()))
                   .group_errors;
    }
    return errors;
  };
  std::vector<double> out;
  for (const Exl2Mixture& mixture : mixtures) {
    const Exl2Groups groups = exl2_groups(mixture, w.cols());
    double& sum = out.emplace_back(0.0);
    for (size_t g = 0; g < groups.size(); ++g) {
      sum += errors_of(groups[g].bits, mixture.group_size)[g];
    }
  }
  return out;
}

int64_t exl2_rounding_bytes(int64_t rows) {
  return booked_f32(rows, kTileColumns);
}

int64_t exl2_held_bytes(const WeightSpec& weight, const Exl2Groups& groups) {
  constexpr int64_t kFloat = sizeof(float), kDouble = sizeof(double);
  const auto count = std::ssize(groups);
  const int64_t rows = weight.rows, cols = weight.cols;
  // A byte for each code and for each code of a scale. Groups are held twice: as asked for and in
  // the result.
  const int64_t matrix = checked_add(checked_mul(rows, checked_add(cols, count)),
                                     2 * count * static_cast<int64_t>(sizeof(Exl2Group)));
  // The costs of columns, what GroupRounding has of rows and tiles, and its results by group.
  const int64_t rounding = cols * kFloat + rows * (kFloat + kTriedScales + kDouble) +
                           ceil_div(rows, kLeastTileRows) * kTriedScales * kDouble +
                           count * (static_cast<int64_t>(sizeof(f16)) + kDouble);
  // Writing holds the column order, then the file's tensors twice: as values and as bytes.
  const int64_t writing = checked_add(cols * static_cast<int64_t>(sizeof(int32_t)),
                                      2 * bytes_of(exl2_specs(weight, groups)));
  return checked_add(matrix, std::max(rounding, writing));
}

}  // namespace jackscrew
