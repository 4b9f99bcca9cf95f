#include "data/batch.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "base/philox.h"
#include "data/shuffle.h"
#include "tests/support/limit_tree.h"
#include "tests/support/resource_limit.h"
#include "tests/support/sanitizer.h"
#include "tests/text/fixture.h"

namespace jackscrew {
namespace {

using Ids = std::vector<int32_t>;

// Examples of random lengths; example i begins with the id 1000 + i, so that it can be recognised.
Dataset random_dataset(int64_t count, int64_t longest) {
  const RandomStream random = RandomStream::make(11, RandomPurpose::init, 0, 0);
  std::vector<Example> examples;
  for (int64_t i = 0; i < count; ++i) {
    const auto size =
        2 + random.bits(static_cast<uint64_t>(i)) % static_cast<uint64_t>(longest - 1);
    Example example;
    example.ids.push_back(static_cast<int32_t>(1000 + i));
    for (uint64_t j = 1; j < size; ++j) example.ids.push_back(static_cast<int32_t>(j));
    for (uint64_t j = 0; j < size; ++j) {
      example.train.push_back(j + 1 == size ||
                              (random.bits(j + 977 * static_cast<uint64_t>(i)) & 1));
    }
    examples.push_back(std::move(example));
  }
  return Dataset(std::move(examples), longest);
}

BatchOptions batch_options(int64_t sequence_len, bool packing, uint64_t seed = 1) {
  BatchOptions options;
  options.sequence_len = sequence_len;
  options.micro_batch_size = 3;
  options.gradient_accumulation_steps = 2;
  options.packing = packing;
  options.seed = seed;
  return options;
}

// The ids that begin the sequences of a step, in order.
Ids first_ids(const StepBatch& step) {
  Ids ids;
  for (const MicroBatch& micro : step.micro_batches) {
    for (size_t s = 0; s + 1 < micro.cu_seqlens.size(); ++s) {
      ids.push_back(micro.ids[static_cast<size_t>(micro.cu_seqlens[s])]);
    }
  }
  return ids;
}

bool same(const StepBatch& a, const StepBatch& b) {
  return a.tokens == b.tokens && a.targets == b.targets && a.first_token == b.first_token &&
         std::equal(a.micro_batches.begin(), a.micro_batches.end(), b.micro_batches.begin(),
                    b.micro_batches.end(), [](const MicroBatch& x, const MicroBatch& y) {
                      return x.ids == y.ids && x.positions == y.positions &&
                             x.targets == y.targets && x.cu_seqlens == y.cu_seqlens &&
                             x.target_count == y.target_count;
                    });
}

// Everything that a micro batch promises, checked against the examples it was made from.
void check_micro_batch(const MicroBatch& micro, const Dataset& dataset) {
  ASSERT_EQ(micro.positions.size(), micro.ids.size());
  ASSERT_EQ(micro.targets.size(), micro.ids.size());
  ASSERT_GE(micro.cu_seqlens.size(), 2u);
  ASSERT_EQ(micro.cu_seqlens.front(), 0);
  ASSERT_EQ(micro.cu_seqlens.back(), static_cast<int32_t>(micro.ids.size()));
  int64_t targets = 0;
  for (size_t s = 0; s + 1 < micro.cu_seqlens.size(); ++s) {
    const auto begin = static_cast<size_t>(micro.cu_seqlens[s]);
    const auto end = static_cast<size_t>(micro.cu_seqlens[s + 1]);
    const Example& example = dataset.example(micro.ids[begin] - 1000);
    ASSERT_EQ(end - begin, example.ids.size());
    for (size_t i = 0; i < example.ids.size(); ++i) {
      EXPECT_EQ(micro.ids[begin + i], example.ids[i]);
      EXPECT_EQ(micro.positions[begin + i], static_cast<int32_t>(i));
      const bool trained = i + 1 < example.ids.size() && example.train[i + 1] != 0;
      EXPECT_EQ(micro.targets[begin + i], trained ? example.ids[i + 1] : -1);
      targets += trained ? 1 : 0;
    }
  }
  EXPECT_EQ(micro.target_count, targets);
}

TEST(MicroBatch, TargetsPositionsAndBounds) {
  MicroBatch micro;
  micro.append({{5, 6, 7}, {1, 0, 1}});
  micro.append({{8, 9}, {1, 1}});
  EXPECT_EQ(micro.ids, (Ids{5, 6, 7, 8, 9}));
  EXPECT_EQ(micro.positions, (Ids{0, 1, 2, 0, 1}));
  EXPECT_EQ(micro.targets, (Ids{-1, 7, -1, 9, -1}));
  EXPECT_EQ(micro.cu_seqlens, (Ids{0, 3, 5}));
  EXPECT_EQ(micro.target_count, 2);
  expect_error(ErrorKind::data, "empty example", [&] { micro.append({}); });
  micro.append({{4, 3}, {1, 1}}, 2);
  EXPECT_EQ(micro.ids, (Ids{5, 6, 7, 8, 9, 0, 0, 4, 3}));
  EXPECT_EQ(micro.positions, (Ids{0, 1, 2, 0, 1, 0, 1, 2, 3}));
  EXPECT_EQ(micro.targets, (Ids{-1, 7, -1, 9, -1, -1, -1, 3, -1}));
  EXPECT_EQ(micro.cu_seqlens, (Ids{0, 3, 5, 9}));
}

TEST(Shuffle, IsAPermutationOfItsOwn) {
  std::set<std::vector<uint32_t>> seen;
  for (const uint64_t seed : {1u, 2u}) {
    for (const int64_t epoch : {0, 1}) {
      for (const char* what : {"rows", "examples"}) {
        const std::vector<uint32_t> order = shuffled_order(50, seed, epoch, what);
        EXPECT_EQ(std::set<uint32_t>(order.begin(), order.end()).size(), 50u);
        EXPECT_EQ(shuffled_order(50, seed, epoch, what), order);
        seen.insert(order);
      }
    }
  }
  EXPECT_EQ(seen.size(), 8u);
  // Each place is equally likely: 24 permutations of 4, 200 of each expected (sigma about 14).
  std::map<std::vector<uint32_t>, int> counts;
  for (uint64_t seed = 0; seed < 4800; ++seed) ++counts[shuffled_order(4, seed, 0, "rows")];
  EXPECT_EQ(counts.size(), 24u);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 200, 70);
}

TEST(Packing, BestFitDecreasing) {
  const std::vector<int32_t> lengths = {3, 7, 5, 4, 2, 6, 1};
  const std::vector<uint32_t> order = {6, 5, 4, 3, 2, 1, 0};
  // 7 opens a row, 6 the next; 5 a third; 4 fits the row of 6 exactly, 3 the row of 7, 2 and 1 that
  // of 5.
  const Rows rows = pack_best_fit(lengths, order, 10);
  EXPECT_EQ(rows.examples, (std::vector<uint32_t>{1, 0, 5, 3, 2, 4, 6}));
  EXPECT_EQ(rows.begins, (std::vector<uint32_t>{0, 2, 4, 7}));
  expect_error(ErrorKind::data, "longer than a row", [&] { pack_best_fit(lengths, order, 6); });
  // Of rows with the same room, the last to get there is filled first.
  const Rows alike = pack_best_fit({6, 6, 6, 4, 4, 3}, {0, 1, 2, 3, 4, 5}, 10);
  EXPECT_EQ(alike.examples, (std::vector<uint32_t>{0, 5, 1, 4, 2, 3}));
  EXPECT_EQ(alike.begins, (std::vector<uint32_t>{0, 2, 4, 6}));
}

TEST(BatchSampler, EveryExampleOnceAnEpoch) {
  const Dataset dataset = random_dataset(101, 40);
  for (const bool packing : {true, false}) {
    const BatchSampler sampler(dataset, batch_options(64, packing));
    const int64_t steps = sampler.steps_per_epoch();
    int64_t next_token = 0;
    std::vector<Ids> orders;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      Ids order;
      int64_t targets = 0;
      int64_t rows_bound = 0;
      for (int64_t i = epoch * steps; i < (epoch + 1) * steps; ++i) {
        const StepBatch step = sampler.step(i);
        EXPECT_EQ(step.first_token, next_token);
        int64_t tokens = 0;
        ASSERT_GE(step.micro_batches.size(), 1u);
        EXPECT_LE(step.micro_batches.size(), 2u);
        for (const MicroBatch& micro : step.micro_batches) {
          check_micro_batch(micro, dataset);
          EXPECT_LE(micro.tokens(), 3 * 64);
          if (!packing) {
            EXPECT_LE(micro.cu_seqlens.size(), 4u);
          }
          tokens += micro.tokens();
          targets += micro.target_count;
        }
        EXPECT_EQ(step.tokens, tokens);
        next_token += tokens;
        rows_bound += packing ? 0 : static_cast<int64_t>(first_ids(step).size());
        const Ids ids = first_ids(step);
        order.insert(order.end(), ids.begin(), ids.end());
      }
      if (!packing) {
        EXPECT_EQ(rows_bound, sampler.rows_per_epoch());
      }
      EXPECT_EQ(targets, dataset.stats().trained_tokens);
      EXPECT_EQ(next_token, (epoch + 1) * dataset.stats().tokens);
      orders.push_back(order);
      std::sort(order.begin(), order.end());
      Ids expected(101);
      std::iota(expected.begin(), expected.end(), 1000);
      EXPECT_EQ(order, expected);
    }
    EXPECT_NE(orders[0], orders[1]);
    EXPECT_NE(orders[1], orders[2]);
  }
}

TEST(BatchSampler, RowsHaveRoomForVirtualTokens) {
  const Dataset dataset = random_dataset(101, 40);
  for (const bool packing : {true, false}) {
    BatchOptions options = batch_options(64, packing);
    options.virtual_tokens = 24;
    const BatchSampler sampler(dataset, options);
    int64_t next_token = 0;
    int64_t sequences = 0;
    for (int64_t i = 0; i < sampler.steps_per_epoch(); ++i) {
      const StepBatch step = sampler.step(i);
      EXPECT_EQ(step.first_token, next_token);
      next_token += step.tokens;
      for (const MicroBatch& micro : step.micro_batches) {
        EXPECT_LE(micro.tokens(), 3 * 64);
        sequences += std::ssize(micro.cu_seqlens) - 1;
        for (size_t s = 0; s + 1 < micro.cu_seqlens.size(); ++s) {
          EXPECT_GT(micro.cu_seqlens[s + 1] - micro.cu_seqlens[s], 24);
        }
      }
    }
    EXPECT_EQ(sequences, dataset.size());
  }
  BatchOptions options = batch_options(64, true);
  options.virtual_tokens = 25;
  expect_error(ErrorKind::data, "longer than sequence_len",
               [&] { BatchSampler(random_dataset(101, 40), options); });
}

TEST(BatchSampler, AStepIsAFunctionOfSeedAndIndex) {
  const Dataset dataset = random_dataset(150, 40);
  const BatchSampler sampler(dataset, batch_options(64, true));
  std::vector<StepBatch> forward;
  const int64_t count = 2 * sampler.steps_per_epoch() + 1;
  for (int64_t i = 0; i < count; ++i) forward.push_back(sampler.step(i));
  for (int64_t i = count - 1; i >= 0; --i) {
    EXPECT_TRUE(same(sampler.step(i), forward[static_cast<size_t>(i)])) << i;
    const BatchSampler fresh(dataset, batch_options(64, true));
    EXPECT_TRUE(same(fresh.step(i), forward[static_cast<size_t>(i)])) << i;
  }
  EXPECT_FALSE(same(BatchSampler(dataset, batch_options(64, true, 2)).step(0), forward[0]));
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < forward.size(); i += 2) {
        equal[t] += same(sampler.step(static_cast<int64_t>(i)), forward[i]) ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, (std::vector<int>(4, 0)));
  expect_error(ErrorKind::usage, "step -1", [&] { sampler.step(-1); });
}

TEST(BatchSampler, PackingFillsRowsAndLengthSaysNothingAboutTime) {
  const Dataset dataset = random_dataset(2000, 60);
  const BatchSampler packed(dataset, batch_options(128, true));
  const BatchSampler loose(dataset, batch_options(128, false));
  EXPECT_GT(packed.fill_rate(), 0.98);
  EXPECT_LE(packed.fill_rate(), 1.0);
  EXPECT_LT(loose.fill_rate(), 0.3);
  EXPECT_EQ(loose.rows_per_epoch(), 2000);
  // Mean length of the sequences in each half of the epoch.
  const auto mean_length = [&](int64_t begin, int64_t end) {
    double tokens = 0;
    double sequences = 0;
    for (int64_t i = begin; i < end; ++i) {
      const StepBatch step = packed.step(i);
      tokens += static_cast<double>(step.tokens);
      sequences += static_cast<double>(first_ids(step).size());
    }
    return tokens / sequences;
  };
  const int64_t half = packed.steps_per_epoch() / 2;
  EXPECT_NEAR(mean_length(0, half) / mean_length(half, 2 * half), 1.0, 0.15);
}

TEST(BatchSampler, KeepsThePartialStepAndRefusesNonsense) {
  std::vector<Example> seven(7, Example{{1000, 2}, {0, 1}});
  const Dataset dataset(seven, 8);
  const BatchSampler sampler(dataset, batch_options(8, false));
  ASSERT_EQ(sampler.steps_per_epoch(), 2);
  EXPECT_EQ(sampler.step(0).tokens, 12);
  EXPECT_EQ(sampler.step(1).tokens, 2);
  EXPECT_EQ(sampler.step(1).micro_batches.size(), 1u);
  EXPECT_EQ(sampler.step(1).targets, 1);
  EXPECT_EQ(sampler.step(3).first_token, 14 + 12);
  expect_error(ErrorKind::data, "no examples", [] {
    const Dataset none;
    BatchSampler(none, {});
  });
  expect_error(ErrorKind::data, "longer than sequence_len 1",
               [&] { BatchSampler(dataset, batch_options(1, true)); });
  BatchOptions bad;
  bad.micro_batch_size = 0;
  expect_error(ErrorKind::usage, "at least 1", [&] { BatchSampler(dataset, bad); });
  bad = batch_options(8, false);
  for (const int64_t many : {int64_t{1} << 28, INT64_MAX}) {
    bad.micro_batch_size = many;
    expect_error(ErrorKind::usage,
                 fmt::format("micro_batch_size {} x sequence_len 8 is more than the 2147483647 "
                             "tokens that a micro-batch can have",
                             many),
                 [&] { BatchSampler(dataset, bad); });
  }
}

// The bytes that a step has taken. Its vectors have no more room than they fill.
int64_t bytes_of_batch(const StepBatch& step) {
  size_t bytes = step.micro_batches.size() * sizeof(MicroBatch);
  for (const MicroBatch& micro : step.micro_batches) {
    for (const Ids* ids : {&micro.ids, &micro.positions, &micro.targets, &micro.cu_seqlens}) {
      EXPECT_EQ(ids->capacity(), ids->size());
      bytes += ids->capacity() * sizeof(int32_t);
    }
  }
  return static_cast<int64_t>(bytes);
}

TEST(BatchSampler, StepsTakeWhatTheySay) {
  const Dataset dataset = random_dataset(2000, 60);
  for (const bool packing : {true, false}) {
    BatchOptions options = batch_options(128, packing);
    options.virtual_tokens = 3;
    options.gradient_accumulation_steps = 5;
    const BatchSampler sampler(dataset, options);
    int64_t most = 0;
    for (int64_t i = 0; i < sampler.steps_per_epoch(); ++i) {
      most = std::max(most, bytes_of_batch(sampler.step(i)));
    }
    EXPECT_LE(most, sampler.step_bytes());
    EXPECT_GT(2 * most, sampler.step_bytes()) << "packing " << packing;
  }
  // A step never has more than an epoch.
  const Dataset few = random_dataset(5, 30);
  BatchOptions options = batch_options(64, true);
  options.gradient_accumulation_steps = 1000;
  const BatchSampler sampler(few, options);
  EXPECT_LE(bytes_of_batch(sampler.step(0)), sampler.step_bytes());
  EXPECT_LE(sampler.step_bytes(), 14 * few.stats().tokens + 2 * int64_t{4 + sizeof(MicroBatch)});
}

int64_t address_space() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  statm >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

// Millions of examples take as much as a small model.
TEST(BatchSampler, AnEpochIsPlannedInWhatItSays) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer takes addresses of its own";
  constexpr int64_t kExamples = 1000000;
  // Large vectors then are maps of their own, which are given back at once.
  ASSERT_EQ(::mallopt(M_MMAP_THRESHOLD, 128 << 10), 1);
  const Example alike{Ids(40, 1000), std::vector<uint8_t>(40, 1)};
  const std::vector<double> weights = {kExamples / 1000.0};
  const Dataset dataset = Dataset(std::vector<Example>(1000, alike), 64).weighted(weights, 1);
  ASSERT_EQ(dataset.size(), kExamples);
  for (const bool packing : {true, false}) {
    const int64_t before = address_space();
    const ResourceLimit limit(RLIMIT_AS, static_cast<rlim_t>(before + 22 * kExamples));
    const BatchSampler sampler(dataset, batch_options(64, packing));
    ASSERT_EQ(sampler.rows_per_epoch(), kExamples);
    // Planned beside the epoch before, the second would not fit.
    EXPECT_GT(sampler.step(sampler.steps_per_epoch()).tokens, 0);
    const int64_t held = address_space() - before;
    EXPECT_LE(held, 10 * kExamples);
    EXPECT_LE(held + sampler.planning_bytes(), 22 * kExamples);
    EXPECT_GE(held + sampler.planning_bytes(), 19 * kExamples);
  }
}

// Its first epoch is planned before a run looks at what all of it needs.
TEST(BatchSampler, PlansNoEpochBeyondTheMemoryLimit) {
  constexpr int64_t kMany = 100000;
  const auto alike = [](int64_t tokens) {
    const auto size = static_cast<size_t>(tokens);
    const Example example{Ids(size, 1000), std::vector<uint8_t>(size, 1)};
    const std::vector<double> weights = {kMany / 100.0};
    return Dataset(std::vector<Example>(100, example), 64).weighted(weights, 1);
  };
  const Dataset long_ones = alike(40), short_ones = alike(4);
  const LimitTree tree;
  tree.process(kMountedV2, "0::/run.scope\n");
  const auto sampler = [&](const Dataset& dataset, bool packing, int64_t left) {
    tree.group_v2("/run.scope", std::to_string(left + kMiB), kMiB);
    return BatchSampler(dataset, batch_options(64, packing), tree.root()).rows_per_epoch();
  };
  // Of the long ones each has a row, and of the short ones 16 have one if they are packed.
  for (const auto& [dataset, packing] :
       {std::pair(&long_ones, true), {&long_ones, false}, {&short_ones, false}}) {
    expect_error(ErrorKind::does_not_fit, "planning an epoch of 100000 examples needs 1.9 MiB",
                 [&, packed = packing, data = dataset] { sampler(*data, packed, 19 * kMany); });
    EXPECT_EQ(sampler(*dataset, packing, 20 * kMany), kMany);
  }
  EXPECT_EQ(sampler(short_ones, true, 14 * kMany), kMany / 16);
  expect_error(ErrorKind::does_not_fit, "planning an epoch of 100000 examples needs 1.2 MiB",
               [&] { sampler(short_ones, true, 12 * kMany); });
}

TEST(EvaluationBatches, KeepTheOrder) {
  const Dataset dataset = random_dataset(150, 30);
  EvaluationBatches batches(dataset, 40);
  Ids ids;
  int64_t tokens = 0;
  int64_t targets = 0;
  int64_t steps = 0;
  for (StepBatch step = batches.next(); !step.micro_batches.empty(); step = batches.next()) {
    const Ids more = first_ids(step);
    ids.insert(ids.end(), more.begin(), more.end());
    tokens += step.tokens;
    targets += step.targets;
    ++steps;
    for (const MicroBatch& micro : step.micro_batches) {
      check_micro_batch(micro, dataset);
      EXPECT_LE(micro.tokens(), 40);
    }
  }
  Ids expected(150);
  std::iota(expected.begin(), expected.end(), 1000);
  EXPECT_EQ(ids, expected);
  EXPECT_EQ(tokens, dataset.stats().tokens);
  EXPECT_EQ(targets, dataset.stats().trained_tokens);
  EXPECT_GT(steps, 1);
  for (const int64_t max_tokens : {int64_t{1}, int64_t{40}, INT64_MAX}) {
    EvaluationBatches all(dataset, max_tokens, 2);
    const int64_t most = all.step_bytes();
    for (StepBatch step = all.next(); !step.micro_batches.empty(); step = all.next()) {
      EXPECT_LE(bytes_of_batch(step), most);
    }
    EXPECT_LE(most, 14 * (tokens + 2 * 150) + 64 * int64_t{4 + sizeof(MicroBatch)});
  }
  EXPECT_EQ(EvaluationBatches(dataset, 1).next().micro_batches.size(), 64u);
  const Dataset none;
  EXPECT_TRUE(EvaluationBatches(none, 1).next().micro_batches.empty());
}

}  // namespace
}  // namespace jackscrew
