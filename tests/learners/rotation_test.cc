#include "learners/rotation_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "base/error.h"
#include "learners/heaviest_groups.h"
#include "tests/support/errors.h"

namespace jackscrew {
namespace {

// Eight blocks of an attention and an MLP group.
std::vector<int64_t> llama_groups() {
  std::vector<int64_t> sizes;
  for (int layer = 0; layer < 8; ++layer) {
    sizes.push_back(4);
    sizes.push_back(9);
  }
  return sizes;
}

int64_t elements(const Rotation& rotation, const std::vector<int64_t>& sizes) {
  int64_t sum = 0;
  for (const int32_t group : rotation.active()) sum += sizes[static_cast<size_t>(group)];
  return sum;
}

std::vector<int32_t> active_of(const Rotation& rotation) {
  return {rotation.active().begin(), rotation.active().end()};
}

TEST(Rotation, NeverExceedsItsShareAndNeverRepeatsAGroup) {
  const std::vector<int64_t> sizes = llama_groups();
  for (const auto order :
       {RotationOrder::permutation, RotationOrder::random, RotationOrder::ascending,
        RotationOrder::descending, RotationOrder::importance}) {
    for (const double churn : {0.1, 0.5, 1.0}) {
      for (const int64_t active : {9, 13, 30, 104, 1000}) {
        Rotation rotation(sizes, {order, active, churn, 7});
        for (int window = 1; window <= 50; ++window) {
          rotation.advance();
          EXPECT_EQ(rotation.window(), window);
          const std::vector<int32_t> groups = active_of(rotation);
          EXPECT_FALSE(groups.empty());
          EXPECT_LE(elements(rotation, sizes), active);
          EXPECT_EQ(std::set<int32_t>(groups.begin(), groups.end()).size(), groups.size());
        }
      }
    }
  }
}

TEST(Rotation, APermutationGivesEveryGroupItsTurnBeforeAnyHasTwoMore) {
  const std::vector<int64_t> sizes = llama_groups();
  Rotation rotation(sizes, {RotationOrder::permutation, 26, 1.0, 3});
  for (int window = 0; window < 200; ++window) {
    rotation.advance();
    const auto [least, most] =
        std::minmax_element(rotation.turns().begin(), rotation.turns().end());
    EXPECT_LE(*most - *least, 2) << window;
  }
  EXPECT_GE(*std::min_element(rotation.turns().begin(), rotation.turns().end()), 40);
}

TEST(Rotation, StrictOrdersGoThroughTheModel) {
  Rotation up({5, 5, 5, 5}, {RotationOrder::ascending, 10, 1.0, 0});
  up.advance();
  EXPECT_EQ(active_of(up), (std::vector<int32_t>{0, 1}));
  up.advance();
  EXPECT_EQ(active_of(up), (std::vector<int32_t>{2, 3}));
  up.advance();
  EXPECT_EQ(active_of(up), (std::vector<int32_t>{0, 1}));
  Rotation down({5, 6, 5, 5}, {RotationOrder::descending, 10, 1.0, 0});
  down.advance();
  EXPECT_EQ(active_of(down), (std::vector<int32_t>{3, 2}));
  down.advance();
  EXPECT_EQ(active_of(down), (std::vector<int32_t>{1}));  // 0 would fit only before its turn
}

TEST(Rotation, ChurnReplacesTheOldest) {
  Rotation rotation({1, 1, 1, 1, 1, 1}, {RotationOrder::ascending, 4, 0.5, 0});
  rotation.advance();
  EXPECT_EQ(active_of(rotation), (std::vector<int32_t>{0, 1, 2, 3}));
  rotation.advance();
  EXPECT_EQ(active_of(rotation), (std::vector<int32_t>{2, 3, 4, 5}));
  rotation.advance();
  EXPECT_EQ(active_of(rotation), (std::vector<int32_t>{4, 5, 0, 1}));
}

TEST(Rotation, EverythingActiveStaysSo) {
  Rotation rotation({3, 4, 5}, {RotationOrder::permutation, 12, 1.0, 0});
  for (int window = 0; window < 5; ++window) {
    rotation.advance();
    EXPECT_EQ(rotation.active().size(), 3u);
  }
}

TEST(Rotation, ImportanceDrawsTheImportantMoreOftenAndNoneNever) {
  std::vector<int64_t> sizes(10, 1);
  Rotation rotation(sizes, {RotationOrder::importance, 2, 1.0, 11});
  for (int window = 0; window < 5; ++window) rotation.advance();
  for (const int64_t turns : rotation.turns()) EXPECT_EQ(turns, 1);  // a round of permutation
  for (int32_t group = 0; group < 10; ++group) rotation.set_score(group, group == 4 ? 9.0 : 1.0);
  for (int window = 0; window < 400; ++window) rotation.advance();
  const auto turns = rotation.turns();
  for (size_t group = 0; group < 10; ++group) {
    if (group != 4) {
      EXPECT_GT(turns[4], 2 * turns[group]);
    }
    EXPECT_GT(turns[group], 20);
  }
}

TEST(Rotation, OtherSeedsGiveOtherOrders) {
  const std::vector<int64_t> sizes = llama_groups();
  std::set<std::vector<int32_t>> orders;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Rotation rotation(sizes, {RotationOrder::permutation, 104, 1.0, seed});
    rotation.advance();
    orders.insert(active_of(rotation));
  }
  EXPECT_EQ(orders.size(), 8u);
}

TEST(Rotation, GoesOnFromItsSavedState) {
  const std::vector<int64_t> sizes = llama_groups();
  for (const auto order :
       {RotationOrder::permutation, RotationOrder::random, RotationOrder::importance}) {
    const RotationOptions options{order, 30, 0.5, 5};
    Rotation first(sizes, options);
    for (int window = 0; window < 13; ++window) {
      first.advance();
      first.set_score(first.active()[0], 1.0 + window);
    }
    std::vector<uint8_t> state(static_cast<size_t>(first.state_bytes()));
    first.save(state);
    Rotation second(sizes, options);
    second.restore(state);
    EXPECT_EQ(active_of(second), active_of(first));
    for (int window = 0; window < 40; ++window) {
      first.advance();
      second.advance();
      ASSERT_EQ(active_of(second), active_of(first)) << window;
    }
  }
}

TEST(Rotation, RefusesADamagedState) {
  const std::vector<int64_t> sizes = llama_groups();
  Rotation rotation(sizes, {RotationOrder::permutation, 30, 1.0, 5});
  rotation.advance();
  std::vector<uint8_t> state(static_cast<size_t>(rotation.state_bytes()));
  rotation.save(state);
  std::vector<uint8_t> shorter = state;
  shorter.pop_back();
  EXPECT_THROW(rotation.restore(shorter), Error);
  state[16] = 99;  // more active groups than there are
  EXPECT_THROW(rotation.restore(state), Error);
}

TEST(Rotation, RefusesAStateWithMoreActiveThanAllowed) {
  const std::vector<int64_t> sizes = llama_groups();
  Rotation larger(sizes, {RotationOrder::ascending, 26, 1.0, 5});
  larger.advance();
  std::vector<uint8_t> state(static_cast<size_t>(larger.state_bytes()));
  larger.save(state);
  const auto restore = [&](int64_t active) {
    Rotation(sizes, {RotationOrder::ascending, active, 1.0, 5}).restore(state);
  };
  restore(26);
  expect_message(ErrorKind::model, "26 parameters are active there, active_params allows 25",
                 [&] { restore(25); });
}

TEST(Rotation, RefusesGroupsThatDoNotFit) {
  EXPECT_THROW(Rotation({5, 50}, {RotationOrder::permutation, 20, 1.0, 0}), Error);
}

TEST(Rotation, KnowsHowLongARoundIs) {
  Rotation rotation({5, 5, 5, 5}, {RotationOrder::permutation, 10, 1.0, 0});
  EXPECT_EQ(rotation.windows_of_a_round(100), 2);
  EXPECT_EQ(rotation.windows_of_a_round(1), 1);
}

TEST(Rotation, KnowsHowLongATurnIs) {
  const auto turn = [](int64_t active, double churn) {
    return Rotation({5, 5, 5, 5, 5, 5, 5, 5}, {RotationOrder::permutation, active, churn, 0})
        .windows_of_a_turn();
  };
  EXPECT_EQ(turn(20, 1.0), 1.0);
  EXPECT_EQ(turn(20, 0.5), 2.0);
  EXPECT_EQ(turn(20, 0.25), 4.0);
  EXPECT_EQ(turn(20, 0.1), 4.0);  // at least one of the four leaves
  EXPECT_EQ(turn(15, 0.5), 1.5);  // two of the three
}

// Each part keeps to its share at any time, and none of its groups waits for ever.
TEST(RotationParts, RotateByThemselves) {
  const std::vector<int64_t> sizes = llama_groups();
  std::vector<int32_t> parts;
  std::vector<int64_t> of_part(3, 0);
  for (size_t g = 0; g < sizes.size(); ++g) {
    parts.push_back(static_cast<int32_t>(3 * g / sizes.size()));
    of_part[static_cast<size_t>(parts.back())] += sizes[g];
  }
  const int64_t all = std::accumulate(of_part.begin(), of_part.end(), int64_t{0});
  RotationParts rotation(sizes, parts, {RotationOrder::permutation, all / 2, 0.5, 5});
  for (int window = 0; window < 40; ++window) {
    rotation.advance();
    std::vector<int64_t> active(3, 0);
    for (const int32_t g : rotation.active()) {
      active[static_cast<size_t>(parts[static_cast<size_t>(g)])] += sizes[static_cast<size_t>(g)];
    }
    for (size_t p = 0; p < 3; ++p) {
      EXPECT_GT(active[p], 0) << p;
      EXPECT_LE(active[p], of_part[p] / 2) << p;
    }
  }
  for (size_t g = 0; g < sizes.size(); ++g) EXPECT_GT(rotation.turns()[g], 5) << g;
  std::vector<int64_t> weights(sizes.begin(), sizes.end());
  int64_t heaviest = 0;
  for (const int32_t g : rotation.heaviest(weights)) heaviest += sizes[static_cast<size_t>(g)];
  EXPECT_LE(heaviest, all / 2);
}

TEST(RotationParts, FillTheirShare) {
  constexpr int64_t kSize = 43008;
  std::vector<int32_t> halves(22, 0);
  std::fill(halves.begin() + 11, halves.end(), 1);
  for (int64_t groups = 2; groups <= 22; groups += 2) {
    RotationParts rotation(std::vector<int64_t>(22, kSize), halves,
                           {RotationOrder::permutation, groups * kSize, 0.5, 5});
    rotation.advance();
    EXPECT_EQ(std::ssize(rotation.active()), groups);
  }
}

TEST(RotationParts, RefuseGroupsThatDoNotFit) {
  try {
    RotationParts({10, 10, 10, 10, 20, 20}, {0, 0, 0, 0, 1, 1},
                  {RotationOrder::permutation, 32, 0.5, 5});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "part 2 of rotation_parts trains 16 parameters at once, but its largest group has 20");
  }
}

TEST(RotationParts, OneIsARotation) {
  const std::vector<int64_t> sizes = llama_groups();
  const RotationOptions options{RotationOrder::importance, 30, 0.5, 5};
  Rotation one(sizes, options);
  RotationParts parts(sizes, std::vector<int32_t>(sizes.size(), 0), options);
  for (int window = 0; window < 30; ++window) {
    one.advance();
    parts.advance();
    one.set_score(one.active()[0], 1.0 + window);
    parts.set_score(parts.active()[0], 1.0 + window);
    ASSERT_TRUE(std::ranges::equal(parts.active(), one.active())) << window;
    ASSERT_TRUE(std::ranges::equal(parts.turns(), one.turns())) << window;
  }
  EXPECT_EQ(parts.windows_of_a_round(100), one.windows_of_a_round(100));
  EXPECT_EQ(parts.windows_of_a_turn(), one.windows_of_a_turn());
  std::vector<uint8_t> state(static_cast<size_t>(parts.state_bytes()));
  parts.save(state);
  one.restore(state);
}

TEST(RotationParts, GoOnFromTheirSavedState) {
  const std::vector<int64_t> sizes = llama_groups();
  std::vector<int32_t> halves;
  for (size_t g = 0; g < sizes.size(); ++g) halves.push_back(2 * g < sizes.size() ? 0 : 1);
  const RotationOptions options{RotationOrder::random, 60, 0.5, 5};
  RotationParts first(sizes, halves, options);
  for (int window = 0; window < 13; ++window) first.advance();
  std::vector<uint8_t> state(static_cast<size_t>(first.state_bytes()));
  first.save(state);
  RotationParts second(sizes, halves, options);
  second.restore(state);
  for (int window = 0; window < 20; ++window) {
    ASSERT_TRUE(std::ranges::equal(second.active(), first.active())) << window;
    first.advance();
    second.advance();
  }
  state.pop_back();
  EXPECT_THROW(second.restore(state), Error);
}

// Expects groups that fit and are as heavy as any that do.
void expect_heaviest(const std::vector<int64_t>& sizes, const std::vector<int64_t>& weights,
                     int64_t capacity) {
  int64_t best = 0;
  for (uint32_t choice = 0; choice < 1u << sizes.size(); ++choice) {
    int64_t size = 0;
    int64_t weight = 0;
    for (size_t g = 0; g < sizes.size(); ++g) {
      if ((choice >> g & 1) == 0) continue;
      size += sizes[g];
      weight += weights[g];
    }
    if (size <= capacity) best = std::max(best, weight);
  }
  int64_t size = 0;
  int64_t weight = 0;
  std::set<int32_t> seen;
  for (const int32_t g : heaviest_groups(sizes, weights, capacity)) {
    EXPECT_TRUE(seen.insert(g).second);
    size += sizes[static_cast<size_t>(g)];
    weight += weights[static_cast<size_t>(g)];
  }
  EXPECT_LE(size, capacity);
  EXPECT_EQ(weight, best) << capacity;
}

TEST(HeaviestGroups, IsAsHeavyAsAnyChoice) {
  for (int64_t capacity = 9; capacity <= 50; ++capacity) {
    expect_heaviest({4, 9, 4, 9, 4, 9, 7}, {5, 9, 5, 9, 5, 9, 8}, capacity);
  }
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> sizes, weights;
    for (int g = 0; g < 10; ++g) {
      sizes.push_back(1 + random() % 6);
      weights.push_back(1 + random() % 4);
    }
    expect_heaviest(sizes, weights, static_cast<int64_t>(random() % 60));
  }
}

// To try every count of every kind of matrix would take minutes.
TEST(HeaviestGroups, AreFoundInALargeModel) {
  struct Kind {
    int64_t rows, cols;
  };
  std::vector<Kind> matrices(2, {151936, 5120});
  for (int layer = 0; layer < 64; ++layer) {
    matrices.insert(matrices.end(), {{8192, 5120},
                                     {1024, 5120},
                                     {1024, 5120},
                                     {5120, 8192},
                                     {25600, 5120},
                                     {25600, 5120},
                                     {5120, 25600}});
  }
  std::vector<int64_t> sizes = {64 * 2 * 5120}, weights = {64 * 2 * 5120 * 16};  // norms
  for (const auto& [rows, cols] : matrices) {
    sizes.push_back(rows * cols);
    weights.push_back(16 * rows * cols - rows * (cols + 4));
  }
  const int64_t capacity = std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) / 4;
  int64_t size = 0, weight = 0;
  for (const int32_t g : heaviest_groups(sizes, weights, capacity)) {
    size += sizes[static_cast<size_t>(g)];
    weight += weights[static_cast<size_t>(g)];
  }
  EXPECT_LE(size, capacity);
  // Every matrix weighs nearly 15 bytes an element, and they fill nearly all.
  EXPECT_GT(weight, capacity / 10 * 149);
}

// There are more sums than can be kept. None that fits is heavier, and none exceeds the capacity by
// more than a part in 2^16 for each group, or in 2^22 by the number of groups.
TEST(HeaviestGroups, AreNearlyExactWhereNoSizeIsLikeAnother) {
  for (const int groups : {40, 500}) {
    std::mt19937_64 random(1);
    std::vector<int64_t> sizes;
    int64_t capacity = 0;
    for (int g = 0; g < groups; ++g) {
      sizes.push_back(static_cast<int64_t>(random() >> 24));
      if (g % 2 == 0) capacity += sizes.back();
    }
    int64_t size = 0;
    for (const int32_t g : heaviest_groups(sizes, sizes, capacity)) {
      size += sizes[static_cast<size_t>(g)];
    }
    const int64_t kept = groups == 40 ? 1 << 16 : (1 << 22) / groups;
    EXPECT_GE(size, capacity);
    EXPECT_LE(size, capacity + groups * (capacity / kept + 1));
  }
}

// Groups of a pipeline's other stages weigh nothing here. They are not chosen.
TEST(Rotation, TheHeaviestGroupsAreOfThisStage) {
  std::vector<int64_t> sizes, weights;
  for (int64_t g = 0; g < 1120; ++g) {
    sizes.push_back(100 + g % 3);
    weights.push_back(g < 560 ? sizes.back() : 0);
  }
  int64_t weight = 0;
  for (const int32_t g : heaviest_groups(sizes, weights, 30000)) {
    EXPECT_LT(g, 560);
    weight += weights[static_cast<size_t>(g)];
  }
  EXPECT_EQ(weight, 30000);
  EXPECT_TRUE(heaviest_groups(sizes, std::vector<int64_t>(sizes.size(), 0), 30000).empty());
}

}  // namespace
}  // namespace jackscrew
