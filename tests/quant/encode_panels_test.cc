// What encode() asks for where there is nothing to fill.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/plan/plan_ops.h"
#include "quant/format.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

// A matrix of a model far beyond any machine has millions of panels, and a plan hundreds of passes.
TEST(EncodePanels, OnThePlanDeviceAreTheOneThatNoneExceeds) {
  const auto plan = make_plan_ops(1, test_isa());
  constexpr int64_t kRows = int64_t{1} << 40;
  constexpr int64_t kCols = 1024;
  for (const Format* format : all_formats()) {
    if (!format->can_encode()) continue;
    SCOPED_TRACE(format->name());
    Arena staging = Arena::measuring();
    std::vector<int64_t> asked;
    const auto source = [&](int64_t begin, int64_t end) {
      EXPECT_EQ(begin, 0);
      asked.push_back(end);
      return Tensor(nullptr, DType::f32, {end, kCols});
    };
    const Storage none{Tensor(nullptr, DType::u8, {format->storage_bytes(kRows, kCols)}), kRows,
                       kCols};
    format->encode(*plan, source, none, {}, staging);
    EXPECT_EQ(asked, std::vector<int64_t>{encode_panel_rows(kCols)});
  }
}

TEST(EncodePanels, AreAllWhereThereAreBytes) {
  const auto rows_of = [](const Storage& storage) {
    int64_t rows = 0;
    const auto source = [&](int64_t begin, int64_t end) {
      rows += end - begin;
      return Tensor();
    };
    for_encode_panels(source, storage, [](const Tensor&, int64_t) {});
    return rows;
  };
  std::byte byte{};
  const Storage real{Tensor(&byte, DType::u8, {1}), 1 << 20, 1024};
  EXPECT_EQ(rows_of(real), 1 << 20);
  const Storage small{Tensor(nullptr, DType::u8, {1}), 1, 1024};
  EXPECT_EQ(rows_of(small), 1);
}

}  // namespace
}  // namespace jackscrew
