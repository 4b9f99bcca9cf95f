// GPTQ's rounding against itself in double, and its files against their reader.
#include "conversion/gptq_rounding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "conversion/column_order.h"
#include "formats/hf_config.h"
#include "quant/stored_rows.h"
#include "tests/cli/run_program.h"
#include "tests/conversion/layer.h"
#include "tests/support/errors.h"
#include "tests/support/worse.h"

namespace jackscrew {
namespace {

using Doubles = std::vector<double>;

// A layer that is rounded to GPTQ.
struct GptqLayer : Layer {
  using Layer::Layer;

  // The matrix rounded; w becomes what its codes stand for.
  GptqMatrix round(const GptqLayout& layout, bool compensates = true) {
    const std::vector<int32_t> order = layout.activation_order
                                           ? hessian.order(ColumnOrder::by_activation)
                                           : std::vector<int32_t>();
    InverseFactor factor;
    if (compensates) factor = inverse_factor(*ops, memory, hessian.matrix(), order, 0.01);
    return round(factor, order, layout);
  }
  GptqMatrix round(const InverseFactor& factor, const std::vector<int32_t>& order,
                   const GptqLayout& layout) {
    reorder_columns(*ops, w.view(), order, Reorder::forth);
    GptqMatrix matrix = round_gptq(*ops, memory, spec, w.view(), factor.u.view(), order, layout);
    reorder_columns(*ops, w.view(), order, Reorder::back);
    return matrix;
  }
};

const GptqLayout kLayouts[] = {{4, 128, false, true}, {4, 32, true, false}, {3, 64, false, false},
                               {2, 16, true, true},   {8, -1, true, true},  {4, -1, false, false},
                               {3, 256, true, true}};

// Wider than the blocks that it is summed by, and no multiple of them.
TEST(Hessian, ErrorIsOfAllColumns) {
  Layer layer(3, 1100);
  const std::vector<float> zeros(static_cast<size_t>(3 * 1100));
  const OwnedTensor product(layer.memory, Purpose::workspace, DType::f32, {3, 1100});
  const double exact = layer.error(zeros);
  EXPECT_NEAR(output_error(*layer.ops, layer.w.view(), layer.hessian.matrix(), product.view()),
              exact, 1e-5 * exact);
}

TEST(GptqRounding, FactorIsOfTheInverse) {
  GptqLayer layer(1, 300);  // two whole blocks and a part
  const std::vector<int32_t> order = layer.hessian.order(ColumnOrder::by_activation);
  for (size_t i = 1; i < order.size(); ++i) {
    const auto at = [&](size_t k) { return layer.hessian.matrix().data<float>()[order[k] * 301]; };
    EXPECT_GE(at(i - 1), at(i));
  }
  const InverseFactor factor =
      inverse_factor(*layer.ops, layer.memory, layer.hessian.matrix(), order, 0.01);
  EXPECT_EQ(factor.damping, 0.01);
  const float* h = layer.hessian.matrix().data<float>();
  const float* u = factor.u.view().data<float>();
  double mean = 0.0;
  for (int64_t i = 0; i < 300; ++i) mean += static_cast<double>(h[i * 301]) / 300.0;
  // Uᵀ U H = 1 means U H Uᵀ = 1.
  double worst = 0.0;
  Doubles uh(300 * 300);
  for (int64_t i = 0; i < 300; ++i) {
    for (int64_t j = 0; j < 300; ++j) {
      double sum = i <= j ? 0.01 * mean * static_cast<double>(u[i * 300 + j]) : 0.0;
      for (int64_t k = i; k < 300; ++k) {
        sum += static_cast<double>(u[i * 300 + k]) *
               static_cast<double>(
                   h[order[static_cast<size_t>(k)] * 300 + order[static_cast<size_t>(j)]]);
      }
      uh[static_cast<size_t>(i * 300 + j)] = sum;
      if (j < i) {
        EXPECT_EQ(u[i * 300 + j], 0.0f);
      }
    }
  }
  for (int64_t i = 0; i < 300; ++i) {
    for (int64_t j = 0; j < 300; ++j) {
      double sum = 0.0;
      for (int64_t k = j; k < 300; ++k) {
        sum += uh[static_cast<size_t>(i * 300 + k)] * static_cast<double>(u[j * 300 + k]);
      }
      worst = worse(worst, std::abs(sum - (i == j ? 1.0 : 0.0)));
    }
  }
  EXPECT_LT(worst, 1e-4);
}

// Column by column, every later one corrected at once. Where a number lies between two codes, f32
// may take the other one: the plain algorithm goes on from the code that was taken.
TEST(GptqRounding, CodesAreThoseOfThePlainAlgorithm) {
  for (const GptqLayout& layout : kLayouts) {
    GptqLayer layer(6, 288);
    SCOPED_TRACE(fmt::format("{} bits, groups of {}", layout.bits, layout.group_size));
    const std::vector<float> before = layer.values();
    const std::vector<int32_t> order = layout.activation_order
                                           ? layer.hessian.order(ColumnOrder::by_activation)
                                           : std::vector<int32_t>();
    const InverseFactor factor =
        inverse_factor(*layer.ops, layer.memory, layer.hessian.matrix(), order, 0.01);
    const float* u = factor.u.view().data<float>();
    const GptqMatrix matrix = layer.round(factor, order, layout);
    for (int64_t row = 0; row < 6; ++row) {
      const auto column = [&](int64_t i) {
        return order.empty() ? i : int64_t{order[static_cast<size_t>(i)]};
      };
      Doubles w(288);
      for (int64_t i = 0; i < 288; ++i) {
        w[static_cast<size_t>(i)] =
            static_cast<double>(before[static_cast<size_t>(row * 288 + column(i))]);
      }
      for (int64_t i = 0; i < 288; ++i) {
        const auto at = static_cast<size_t>(row * 288 + column(i));
        const auto group = static_cast<size_t>(row * matrix.groups +
                                               matrix.group_of[static_cast<size_t>(column(i))]);
        const double scale = static_cast<double>(to_float(matrix.scales[group]));
        const double zero = matrix.zeros[group], last = (1 << layout.bits) - 1;
        const double exact = std::clamp(w[static_cast<size_t>(i)] / scale + zero, 0.0, last);
        const double code = matrix.codes[at];
        EXPECT_NEAR(code, exact, 0.5 + 2e-3);
        const float value = to_float(to_f16(static_cast<float>(scale * (code - zero))));
        EXPECT_EQ(layer.values()[at], value);
        const double error = (static_cast<double>(value) - w[static_cast<size_t>(i)]) /
                             static_cast<double>(u[i * 289]);
        for (int64_t j = i + 1; j < 288; ++j) {
          w[static_cast<size_t>(j)] += error * static_cast<double>(u[i * 288 + j]);
        }
      }
    }
  }
}

TEST(GptqRounding, LosesLessThanTheNearest) {
  for (const GptqLayout& layout : kLayouts) {
    SCOPED_TRACE(fmt::format("{} bits, groups of {}", layout.bits, layout.group_size));
    GptqLayer rounded(16, 192), nearest(16, 192);
    const std::vector<float> before = rounded.values();
    rounded.round(layout);
    nearest.round(layout, false);
    EXPECT_LT(rounded.error(before), 0.7 * nearest.error(before));
  }
}

// A grid has a code below 0 even where no weight is: the others must still reach the largest.
TEST(GptqRounding, GroupsOfOneSignAreNotClipped) {
  for (const int64_t bits : {2, 4}) {
    GptqLayer layer(8, 64);
    for (float& x : std::span(layer.w.view().data<float>(), 8 * 64)) x = 1.0f + std::abs(x);
    const std::vector<float> before = layer.values();
    layer.round({.bits = bits, .group_size = 32, .symmetric = false}, false);
    const std::vector<float> after = layer.values();
    const float largest = *std::ranges::max_element(before);
    const float code = largest / static_cast<float>((1 << bits) - 2);
    for (size_t i = 0; i < before.size(); ++i) {
      ASSERT_NEAR(after[i], before[i], 0.55f * code) << bits << " bits, element " << i;
    }
  }
}

TEST(GptqRounding, SameBitsWithAnyThreads) {
  GptqLayer one(40, 320, 1), three(40, 320, 3);
  const GptqMatrix a = one.round({4, 64, true, false}), b = three.round({4, 64, true, false});
  EXPECT_EQ(a.codes, b.codes);
  EXPECT_EQ(a.zeros, b.zeros);
  EXPECT_EQ(one.values(), three.values());
}

// What the reader finds in the file of a rounded layer.
std::vector<float> values_in_file(GptqLayer& layer, const GptqLayout& layout,
                                  const GptqMatrix& matrix) {
  const TemporaryDirectory directory("jackscrew_gptq_writer");
  QuantisedModelWriter writer(
      directory.path(), {{layer.spec, nullptr}},
      [&](const WeightSpec& weight) { return gptq_specs(weight, layout); }, int64_t{1} << 30);
  writer.write_coded(gptq_tensors(layer.spec, layout, matrix));
  writer.close();
  directory.file("config.json",
                 add_quantization_config("{}", gptq_quantization_config(layout, 0.01)));
  return stored_values(layer, directory.path());
}

TEST(GptqRounding, FilesAreReadAsTheSameValues) {
  for (const GptqLayout& layout : kLayouts) {
    SCOPED_TRACE(fmt::format("{} bits, groups of {}", layout.bits, layout.group_size));
    GptqLayer layer(32, 288);
    const GptqMatrix matrix = layer.round(layout);
    EXPECT_EQ(values_in_file(layer, layout, matrix), layer.values());
  }
}

// Whatever is not refused can be read, up to the largest weight.
TEST(GptqRounding, FilesAtTheLimitAreRead) {
  for (const int64_t bits : {2, 3, 4, 8}) {
    for (const bool symmetric : {true, false}) {
      for (const float sign : {1.0f, -1.0f}) {
        SCOPED_TRACE(fmt::format("{} bits, symmetric {}, sign {}", bits, symmetric, sign));
        const GptqLayout layout{.bits = bits, .group_size = 32, .symmetric = symmetric};
        float accepted = 9000.0f, refused = 3e5f;
        for (int step = 0; step < 16; ++step) {
          const float size = step == 0 ? accepted : 0.5f * (accepted + refused);
          GptqLayer layer(32, 64);
          layer.w.view().data<float>()[5] = sign * size;
          std::optional<GptqMatrix> matrix;
          try {
            matrix = layer.round(layout, false);
          } catch (const Error& error) {
            ASSERT_EQ(error.kind(), ErrorKind::model) << error.what();
          }
          (matrix ? accepted : refused) = size;
          if (matrix) {
            ASSERT_EQ(values_in_file(layer, layout, *matrix), layer.values()) << size;
          }
        }
        EXPECT_GT(accepted, 9000.0f);
        EXPECT_LT(refused, 3e5f);
      }
    }
  }
}

// What is booked covers the vectors that are there while codes are reordered, and while tensors are
// made: their words, which have no more bytes than they, included.
TEST(GptqRounding, BooksAllItsVectors) {
  for (const GptqLayout& layout : kLayouts) {
    SCOPED_TRACE(fmt::format("{} bits, groups of {}", layout.bits, layout.group_size));
    GptqLayer layer(32, 288);
    const GptqMatrix matrix = layer.round(layout);
    const auto tensors = gptq_tensors(layer.spec, layout, matrix);
    const size_t codes = matrix.codes.capacity();
    const size_t groups = matrix.group_of.capacity() * sizeof(int32_t);
    const size_t held =
        codes + matrix.zeros.capacity() + matrix.scales.capacity() * sizeof(f16) + groups;
    size_t written = 0;
    for (const TensorBytes& tensor : tensors) written += tensor.bytes.capacity();
    const auto booked = static_cast<size_t>(gptq_held_bytes(layer.spec, layout));
    EXPECT_GE(booked, held + codes + 288 * sizeof(float));
    EXPECT_GE(booked, held + 2 * written - groups);
    EXPECT_LE(booked, held + std::max(codes + 288 * sizeof(float), 2 * written - groups));
  }
}

// Inputs that are multiples of each other: the Hessian has rank 1.
TEST(GptqRounding, SingularHessiansAreDamped) {
  GptqLayer layer(4, 64);
  const OwnedTensor x(layer.memory, Purpose::activations, DType::f32, {1, 64});
  for (int i = 0; i < 64; ++i) x.view().data<float>()[i] = 1.0f;
  for (const bool dead : {false, true}) {
    Hessian hessian(layer.memory, 64);
    if (!dead) hessian.add(*layer.ops, x.view());
    hessian.finish("a test");
    const InverseFactor factor =
        inverse_factor(*layer.ops, layer.memory, hessian.matrix(), {}, 0.01);
    layer.round(factor, {}, {});
    for (const float value : layer.values()) EXPECT_TRUE(std::isfinite(value));
  }
}

TEST(GptqRounding, RefusesWhatFilesCannotHave) {
  expect_message(ErrorKind::usage, "5 bits", [] { check_gptq_layout({5, 128}); });
  expect_message(ErrorKind::usage, "group_size=100", [] { check_gptq_layout({4, 100}); });
  GptqLayer odd(4, 36);
  expect_message(ErrorKind::model, "4 rows", [&] { check_gptq_shape(odd.spec, {4, 128}); });
  GptqLayer huge(8, 64);
  huge.w.view().data<float>()[5] = 3e5f;
  expect_message(ErrorKind::model, "beyond those of f16", [&] { huge.round({4, 32}); });
  GptqLayer damaged(8, 64);
  damaged.w.view().data<float>()[70] = std::numeric_limits<float>::quiet_NaN();
  expect_message(ErrorKind::non_finite, "up_proj.weight has values that are not finite", [&] {
    damaged.round({4, 32});
  });
}

}  // namespace
}  // namespace jackscrew
