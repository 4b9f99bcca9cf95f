// EXL2's rounding against itself in double, and its files against their reader.
#include "conversion/exl2_rounding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "conversion/column_order.h"
#include "conversion/exl2_mixtures.h"
#include "conversion/exl2_tile.h"
#include "formats/hf_config.h"
#include "tests/cli/run_program.h"
#include "tests/conversion/layer.h"
#include "tests/support/errors.h"

namespace jackscrew {
namespace {

struct Exl2Layer : Layer {
  using Layer::Layer;

  // The matrix rounded; w becomes what its codes stand for.
  Exl2Rounding round(const Exl2Groups& groups) {
    const std::vector<int32_t> order = hessian.order(ColumnOrder::by_activation);
    const InverseFactor factor = inverse_factor(*ops, memory, hessian.matrix(), order, 0.01);
    reorder_columns(*ops, w.view(), order, Reorder::forth);
    Exl2Rounding out = round_exl2(*ops, memory, spec, w.view(), factor.u.view(), groups);
    reorder_columns(*ops, w.view(), order, Reorder::back);
    out.matrix.column_order = order;
    return out;
  }
};

// 288 columns: groups that end within a block of the rounding and groups that fill one, a last one
// that is shorter.
const Exl2Mixture kCases[] = {{2, 2, 100, 128}, {3, 2, 10, 32}, {4, 3, 50, 64},  {5, 4, 25, 32},
                              {6, 5, 10, 128},  {8, 2, 5, 32},  {8, 8, 100, 128}};

double error_of(const Exl2Rounding& rounded) {
  return std::accumulate(rounded.group_errors.begin(), rounded.group_errors.end(), 0.0);
}

std::string name_of(const Exl2Mixture& mixture) {
  return fmt::format("{} % of {} bits, {} bits, groups of {}", mixture.high_percent, mixture.high,
                     mixture.low, mixture.group_size);
}

TEST(Exl2Rounding, GroupsCoverTheColumns) {
  for (const Exl2Mixture& mixture : exl2_mixtures()) {
    for (const int64_t cols : {32, 64, 288, 576, 1536, 11008}) {
      const Exl2Groups groups = exl2_groups(mixture, cols);
      int64_t covered = 0, high = 0;
      for (size_t g = 0; g < groups.size(); ++g) {
        covered += groups[g].columns;
        high += groups[g].bits == mixture.high ? groups[g].columns : 0;
        EXPECT_EQ(groups[g].columns % 32, 0);
        EXPECT_LE(groups[g].columns, mixture.group_size);
        if (g > 0) {
          EXPECT_LE(groups[g].bits, groups[g - 1].bits);
        }
      }
      EXPECT_EQ(covered, cols);
      EXPECT_GE(100 * high, mixture.high_percent * cols) << name_of(mixture);
    }
  }
}

// Column by column, every later one corrected at once, with the values that the layout says: where
// a number lies between two codes f32 may take the other one, and the plain algorithm goes on from
// the code that was taken.
TEST(Exl2Rounding, CodesAreThoseOfThePlainAlgorithm) {
  for (const Exl2Mixture& mixture : kCases) {
    SCOPED_TRACE(name_of(mixture));
    Exl2Layer layer(6, 288);
    const std::vector<float> before = layer.values();
    const std::vector<int32_t> order = layer.hessian.order(ColumnOrder::by_activation);
    const InverseFactor factor =
        inverse_factor(*layer.ops, layer.memory, layer.hessian.matrix(), order, 0.01);
    const float* u = factor.u.view().data<float>();
    const Exl2Groups groups = exl2_groups(mixture, 288);
    const Exl2Rounding rounded = layer.round(groups);
    double all = 0.0;
    for (int64_t row = 0; row < 6; ++row) {
      std::vector<double> w(288);
      for (size_t i = 0; i < 288; ++i) {
        w[i] = static_cast<double>(before[static_cast<size_t>(row * 288 + order[i])]);
      }
      int64_t first = 0;
      for (size_t g = 0; g < groups.size(); ++g) {
        const double middle = std::ldexp(1.0, static_cast<int>(groups[g].bits) - 1);
        const double root = rounded.matrix.scale_codes[g * 6 + static_cast<size_t>(row)] + 1;
        const double prescaled = to_float(to_f16(to_float(rounded.matrix.scale_max[g]) / 256.0f));
        const double scale = to_float(to_f16(static_cast<float>(root * root * prescaled)));
        for (int64_t i = first; i < first + groups[g].columns; ++i) {
          const double exact =
              std::clamp(w[static_cast<size_t>(i)] / scale + middle, 0.0, 2.0 * middle - 1.0);
          const double code = rounded.matrix.codes[static_cast<size_t>(row * 288 + i)];
          EXPECT_NEAR(code, exact, 0.5 + 2e-3);
          const float value = to_float(to_f16(static_cast<float>(scale * (code - middle))));
          EXPECT_EQ(layer.values()[static_cast<size_t>(row * 288 + order[static_cast<size_t>(i)])],
                    value);
          const double error = (static_cast<double>(value) - w[static_cast<size_t>(i)]) /
                               static_cast<double>(u[i * 289]);
          all += error * error;
          for (int64_t j = i + 1; j < 288; ++j) {
            w[static_cast<size_t>(j)] += error * static_cast<double>(u[i * 288 + j]);
          }
        }
        first += groups[g].columns;
      }
    }
    EXPECT_NEAR(error_of(rounded) / all, 1.0, 1e-3);
    // Of the damped Hessian: nearly what the outputs are off by.
    const double off = layer.error(before);
    EXPECT_LE(off, error_of(rounded) * (1.0 + 1e-3));
    EXPECT_GE(off, 0.5 * error_of(rounded));
  }
}

// Rounded throughout in each of its bits, a matrix says what mixtures of them lose.
TEST(Exl2Rounding, MixturesLoseWhatTheirGroupsDo) {
  Exl2Layer layer(96, 288);
  const std::vector<float> before = layer.values();
  const std::vector<int32_t> order = layer.hessian.order(ColumnOrder::by_activation);
  const InverseFactor factor =
      inverse_factor(*layer.ops, layer.memory, layer.hessian.matrix(), order, 0.01);
  reorder_columns(*layer.ops, layer.w.view(), order, Reorder::forth);
  const std::vector<float> ordered = layer.values();
  const std::vector<double> errors =
      mixture_errors(*layer.ops, layer.memory, layer.spec, layer.w.view(), factor.u.view(), kCases);
  EXPECT_EQ(layer.values(), ordered);
  for (size_t i = 0; i < std::size(kCases); ++i) {
    SCOPED_TRACE(name_of(kCases[i]));
    std::copy(before.begin(), before.end(), layer.w.view().data<float>());
    const double error = error_of(layer.round(exl2_groups(kCases[i], 288)));
    if (kCases[i].high == kCases[i].low) {
      EXPECT_EQ(errors[i], error);
    } else if (kCases[i].low == 2) {
      EXPECT_NEAR(errors[i] / error, 1.1, 0.1);
    } else {
      EXPECT_NEAR(errors[i] / error, 1.0, 0.04);
    }
  }
}

// No scale that the layout has, for a row and a group by themselves, is much better than the one
// that is found: all codes, with many more shares of scale_max.
TEST(Exl2Rounding, ScalesAreNearlyTheBest) {
  for (const int64_t bits : {2, 3, 4}) {
    SCOPED_TRACE(fmt::format("{} bits", bits));
    Exl2Layer layer(1, 32);
    const std::vector<float> before = layer.values();
    const std::vector<int32_t> order = layer.hessian.order(ColumnOrder::by_activation);
    const InverseFactor factor =
        inverse_factor(*layer.ops, layer.memory, layer.hessian.matrix(), order, 0.01);
    const std::vector<float> costs = column_costs(factor.u.view(), 32);
    const Exl2Rounding rounded = layer.round({{32, bits}});
    const double middle = std::ldexp(1.0, static_cast<int>(bits) - 1);
    const auto error_of = [&](double scale) {
      double sum = 0.0;
      for (size_t i = 0; i < 32; ++i) {
        const double w = static_cast<double>(before[static_cast<size_t>(order[i])]);
        const double number = std::clamp(std::nearbyint(w / scale), -middle, middle - 1.0);
        sum += static_cast<double>(costs[i]) * (w - scale * number) * (w - scale * number);
      }
      return sum;
    };
    double most = 0.0;
    for (const float w : before) most = std::max(most, std::abs(static_cast<double>(w)));
    double best = std::numeric_limits<double>::infinity();
    for (double share = 0.3; share < 1.2; share += 0.002) {
      best = std::min(best, error_of(share * most / (middle - 0.5)));
    }
    const double root = rounded.matrix.scale_codes[0] + 1;
    const double found =
        error_of(root * root * static_cast<double>(to_float(rounded.matrix.scale_max[0])) / 256.0);
    EXPECT_LE(found, 1.15 * best);
  }
}

TEST(Exl2Rounding, SameBitsWithAnyThreads) {
  Exl2Layer one(40, 320, 1), three(40, 320, 3);
  const Exl2Groups groups = exl2_groups({4, 3, 25, 32}, 320);
  const Exl2Rounding a = one.round(groups), b = three.round(groups);
  EXPECT_EQ(a.matrix.codes, b.matrix.codes);
  EXPECT_EQ(a.matrix.scale_codes, b.matrix.scale_codes);
  EXPECT_EQ(a.group_errors, b.group_errors);
  EXPECT_EQ(one.values(), three.values());
}

TEST(Exl2Rounding, FilesAreReadAsTheSameValues) {
  for (const int64_t rows : {32, 40}) {  // the latter are padded
    for (const Exl2Mixture& mixture : kCases) {
      SCOPED_TRACE(fmt::format("{} rows, {}", rows, name_of(mixture)));
      Exl2Layer layer(rows, 288);
      const Exl2Rounding rounded = layer.round(exl2_groups(mixture, 288));
      const TemporaryDirectory directory("jackscrew_exl2_writer");
      QuantisedModelWriter writer(
          directory.path(), {{layer.spec, nullptr}},
          [&](const WeightSpec& weight) { return exl2_specs(weight, rounded.matrix.groups); },
          int64_t{1} << 30);
      writer.write_coded(exl2_tensors(layer.spec, rounded.matrix));
      writer.close();
      directory.file("config.json",
                     add_quantization_config("{}", exl2_quantization_config({3.0, 6, 8, 64})));
      EXPECT_EQ(stored_values(layer, directory.path()), layer.values());
      const SafetensorsSource source(directory.path());
      EXPECT_EQ(source.find(layer.spec.name)->format->storage_bytes(rows, 288),
                exl2_memory_bytes(layer.spec, rounded.matrix.groups));
    }
  }
}

// What is booked covers the vectors that are there while tensors are made: their words, which have
// no more bytes than they, included. Few columns leave those of the rounding the larger.
TEST(Exl2Rounding, BooksAllItsVectors) {
  for (const auto& [cols, mixture] : {std::pair<int64_t, Exl2Mixture>{288, {2, 2, 100, 32}},
                                      {288, {8, 2, 5, 128}},
                                      {32, {2, 2, 100, 32}}}) {
    SCOPED_TRACE(fmt::format("{} columns, {}", cols, name_of(mixture)));
    Exl2Layer layer(40, cols);
    const Exl2Rounding rounded = layer.round(exl2_groups(mixture, cols));
    const Exl2Matrix& matrix = rounded.matrix;
    const auto booked = static_cast<size_t>(exl2_held_bytes(layer.spec, matrix.groups));
    const size_t of_codes = matrix.codes.capacity() + matrix.scale_codes.capacity() +
                            matrix.groups.capacity() * sizeof(Exl2Group);
    size_t written = 0;
    for (const TensorBytes& tensor : exl2_tensors(layer.spec, matrix)) {
      written += tensor.bytes.capacity();
    }
    EXPECT_GE(booked, of_codes + matrix.column_order.capacity() * sizeof(int32_t) + 2 * written);
    // Of rows: the largest magnitude, the code of each tried scale and the sum of errors.
    const size_t of_rows = 40 * (sizeof(float) + kTriedScales + sizeof(double));
    EXPECT_GE(booked, of_codes + of_rows + static_cast<size_t>(cols) * sizeof(float) +
                          matrix.scale_max.capacity() * sizeof(f16) +
                          rounded.group_errors.capacity() * sizeof(double));
  }
}

// Numbers so small that scales are f16's smallest, and none but 0.
TEST(Exl2Rounding, TinyNumbersHaveScales) {
  for (const float size : {0.0f, 1e-9f, 1e-6f}) {
    Exl2Layer layer(8, 64);
    for (int64_t i = 0; i < layer.w.view().size(); ++i) layer.w.view().data<float>()[i] *= size;
    layer.round({{64, 4}});
    for (const float value : layer.values()) {
      EXPECT_TRUE(std::isfinite(value));
      if (size == 0.0f) {
        EXPECT_EQ(value, 0.0f);
      }
    }
  }
}

TEST(Exl2Rounding, RefusesWhatFilesCannotHave) {
  Exl2Layer odd(8, 48);
  expect_message(ErrorKind::model, "48 columns", [&] { check_exl2_shape(odd.spec); });
  Exl2Layer huge(8, 64);
  huge.w.view().data<float>()[5] = 3e5f;
  expect_message(ErrorKind::model, "beyond those of f16", [&] { huge.round({{64, 4}}); });
  Exl2Layer damaged(8, 64);
  damaged.w.view().data<float>()[70] = std::numeric_limits<float>::quiet_NaN();
  expect_message(ErrorKind::non_finite, "up_proj.weight has values that are not finite", [&] {
    damaged.round({{64, 4}});
  });
  expect_message(ErrorKind::usage, "head of 7 bits", [] { exl2_head_mixture(7); });
}

}  // namespace
}  // namespace jackscrew
