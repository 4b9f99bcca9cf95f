// The choice of rates against every choice there is.
#include "conversion/rate_choice.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <random>

#include "conversion/mixed_rates.h"
#include "tests/support/errors.h"

namespace jackscrew {
namespace {

using Items = std::vector<std::vector<RateOption>>;

// The least cost within a limit, by trying all; infinity where there is no choice.
double least_cost(const Items& items, int64_t limit, size_t item = 0) {
  if (limit < 0) return std::numeric_limits<double>::infinity();
  if (item == items.size()) return 0.0;
  double least = std::numeric_limits<double>::infinity();
  for (const RateOption& option : items[item]) {
    least = std::min(least, option.cost + least_cost(items, limit - option.size, item + 1));
  }
  return least;
}

Items random_items(std::mt19937& random, size_t count, size_t options, int64_t sizes) {
  Items items(count);
  for (auto& item : items) {
    for (size_t i = 0; i < options; ++i) {
      // Costs of few values: many choices are as good as others.
      item.push_back({static_cast<int64_t>(random() % static_cast<uint64_t>(sizes)),
                      static_cast<double>(random() % 50) / 16.0});
    }
  }
  return items;
}

TEST(RateChoice, NoChoiceIsCheaper) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    const size_t count = 1 + random() % 6, options = 1 + random() % 5;
    const Items items = random_items(random, count, options, round % 2 == 0 ? 12 : 1000);
    int64_t most = 0;
    for (const auto& item : items) most += std::ranges::max(item, {}, &RateOption::size).size;
    for (const int64_t limit : {most / 4, most / 2, 3 * most / 4, most, 2 * most}) {
      SCOPED_TRACE(fmt::format("round {}, limit {}", round, limit));
      const double least = least_cost(items, limit);
      const auto choice = cheapest_choice(items, limit);
      ASSERT_EQ(choice.has_value(), least < std::numeric_limits<double>::infinity());
      if (!choice) continue;
      EXPECT_NEAR(choice->cost, least, 1e-12);
      double cost = 0.0;
      int64_t size = 0;
      for (size_t i = 0; i < items.size(); ++i) {
        cost += items[i].at(choice->options[i]).cost;
        size += items[i].at(choice->options[i]).size;
      }
      EXPECT_NEAR(cost, choice->cost, 1e-12);
      EXPECT_EQ(size, choice->size);
      EXPECT_LE(size, limit);
    }
  }
}

// A choice along prices alone would leave room.
TEST(RateChoice, FillsWhatPricesLeave) {
  const Items items = {{{10, 100.0}, {20, 90.0}, {100, 0.0}}, {{10, 50.0}, {30, 45.0}}};
  const auto choice = cheapest_choice(items, 55);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->options, (std::vector<size_t>{1, 1}));
  EXPECT_EQ(cheapest_choice(items, 19), std::nullopt);
}

// Of a model of many blocks: prices bound it, see that none is far off.
TEST(RateChoice, KeepsToThePriceOfManyItems) {
  std::mt19937 random(5);
  Items items(300);
  for (auto& item : items) {
    const double weight = 0.1 + static_cast<double>(random() % 100);
    const auto shape = static_cast<int64_t>(1000 + 3000 * (random() % 3));
    for (int64_t bits = 2; bits <= 8; ++bits) {
      item.push_back({shape * bits + static_cast<int64_t>(random() % 97),
                      weight / static_cast<double>(int64_t{1} << (2 * bits))});
    }
  }
  int64_t least = 0, most = 0;
  for (const auto& item : items) {
    least += item.front().size;
    most += item.back().size;
  }
  for (const int64_t limit : {least, (2 * least + most) / 3, (least + most) / 2, most}) {
    const auto choice = cheapest_choice(items, limit);
    ASSERT_TRUE(choice);
    // No exchange of two items' neighbouring options helps.
    for (size_t a = 0; a < items.size(); a += 7) {
      for (size_t b = 0; b < items.size(); ++b) {
        const size_t from_a = choice->options[a], from_b = choice->options[b];
        if (a == b || from_a + 1 == items[a].size() || from_b == 0) continue;
        const int64_t size = choice->size + items[a][from_a + 1].size - items[a][from_a].size +
                             items[b][from_b - 1].size - items[b][from_b].size;
        const double cost = choice->cost + items[a][from_a + 1].cost - items[a][from_a].cost +
                            items[b][from_b - 1].cost - items[b][from_b].cost;
        EXPECT_FALSE(size <= limit && cost < choice->cost - 1e-9);
      }
    }
  }
}

// Of a large model it takes more than a minute.
TEST(RateChoice, EndsWhereItsCheckThrows) {
  const Items items(5, {{1, 2.0}, {2, 1.0}});
  int left = 3;
  const auto check = [&] {
    if (--left == 0) throw Error(ErrorKind::interrupted, "interrupted");
  };
  expect_message(ErrorKind::interrupted, "interrupted", [&] { cheapest_choice(items, 8, check); });
  EXPECT_EQ(left, 0);
  left = 100;
  EXPECT_TRUE(cheapest_choice(items, 8, check));
  EXPECT_EQ(left, 95);
}

// What is needed and what is left may read alike.
TEST(RateChoice, SizesThatReadAlikeAreToldApart) {
  MixedRates rates({0, {{1, 102400}}});
  rates.add({.name = "model.layers.0.self_attn.q_proj.weight", .rows = 32, .cols = 32, .layer = 0},
            {{1024, 102401}});
  expect_message(ErrorKind::does_not_fit,
                 "take 100.0 KiB (102401 B) in the fewest bits, and 100.0 KiB (102400 B) is left",
                 [&] { rates.check(); });
}

}  // namespace
}  // namespace jackscrew
