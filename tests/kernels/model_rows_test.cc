#include <gtest/gtest.h>

#include "kernels/rows/model.rows.h"
#include "kernels/sum_over_tokens.h"
#include "tests/kernels/kernel_data.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

constexpr double kRowTolerance = 1e-6;

// Launches args, whose sums over tokens are added to `to`; see AddColumns.
template <class Args>
void add_over_tokens(Ops& ops, Args args, std::vector<float>& to) {
  const auto width = static_cast<int64_t>(to.size());
  const int64_t chunks = ceil_div(args.tokens, args.tokens_of_chunk);
  const int64_t blocks = ceil_div(width, kColumnBlock);
  std::vector<float> partial(at(chunks * width));
  args.partial = partial.data();
  ops.launch(args, chunks * blocks);
  ops.launch(AddColumns{partial.data(), to.data(), chunks, width}, blocks);
}

std::vector<int32_t> some_indices(int64_t count, int64_t bound, uint32_t seed) {
  const RandomStream stream = RandomStream::make(seed, RandomPurpose::shuffle, 0, 0);
  std::vector<int32_t> out;
  for (int64_t i = 0; i < count; ++i) {
    out.push_back(
        static_cast<int32_t>(stream.bits(static_cast<uint64_t>(i)) % static_cast<uint32_t>(bound)));
  }
  return out;
}

struct NormRun {
  NormRun(int64_t token_count, int64_t width)
      : tokens(token_count),
        hidden(width),
        x(random_floats(tokens * hidden, 1)),
        weight(random_floats(hidden, 2)),
        dy(random_floats(tokens * hidden, 3)),
        dx(random_floats(tokens * hidden, 4)),
        dweight(random_floats(hidden, 5)),
        y(x.size()),
        applied(x.size()),
        rstd(at(tokens)) {}

  void run(Ops& ops) {
    ops.launch(RmsNormForwardF32{x.data(), weight.data(), y.data(), rstd.data(), hidden, kEpsilon},
               tokens);
    ops.launch(RmsNormApplyF32{x.data(), weight.data(), rstd.data(), applied.data(), hidden},
               tokens);
    ops.launch(
        RmsNormBackwardF32{x.data(), weight.data(), rstd.data(), dy.data(), dx.data(), hidden},
        tokens);
    add_over_tokens(ops,
                    RmsNormWeightGradientF32{x.data(), rstd.data(), dy.data(), nullptr, tokens,
                                             hidden, kTokenChunk},
                    dweight);
  }

  static constexpr float kEpsilon = 1e-5f;
  int64_t tokens, hidden;
  std::vector<float> x, weight, dy, dx, dweight, y, applied, rstd;
};

TEST(RmsNorm, MatchesTheReference) {
  const auto ops = make_test_ops();
  for (const int64_t hidden : {1, 61, 64, 576}) {
    for (const int64_t tokens : {1, 7, 300}) {
      NormRun run(tokens, hidden);
      run.run(*ops);
      Doubles rstd;
      const Doubles y = reference::rms_norm(widen(run.x), widen(run.weight), run.kEpsilon, &rstd);
      EXPECT_LE(relative_error(run.y, y), kRowTolerance) << hidden;
      EXPECT_LE(relative_error(run.rstd, rstd), kRowTolerance) << hidden;
      EXPECT_EQ(run.y, run.applied) << hidden;
    }
  }
}

TEST(RmsNorm, BackwardMatchesDifferences) {
  const auto ops = make_test_ops();
  for (const int64_t hidden : {5, 61, 64, 576}) {
    for (const int64_t tokens : {1, 3}) {
      NormRun run(tokens, hidden);
      const std::vector<float> dx_before = run.dx;
      const std::vector<float> dweight_before = run.dweight;
      run.run(*ops);
      const Doubles x = widen(run.x);
      const Doubles weight = widen(run.weight);
      const Doubles dy = widen(run.dy);
      Doubles dx = reference::gradient(x, [&](const Doubles& moved) {
        return reference::dot(dy, reference::rms_norm(moved, weight, run.kEpsilon));
      });
      Doubles dweight = reference::gradient(weight, [&](const Doubles& moved) {
        return reference::dot(dy, reference::rms_norm(x, moved, run.kEpsilon));
      });
      for (size_t i = 0; i < dx.size(); ++i) dx[i] += static_cast<double>(dx_before[i]);
      for (size_t i = 0; i < dweight.size(); ++i) {
        dweight[i] += static_cast<double>(dweight_before[i]);
      }
      EXPECT_LE(relative_error(run.dx, dx), kRowTolerance) << hidden << " " << tokens;
      EXPECT_LE(relative_error(run.dweight, dweight), kRowTolerance) << hidden << " " << tokens;
    }
  }
}

// dweight is linear in dy, so its differences are exact sums: they serve at any length.
TEST(RmsNorm, WeightGradientOverManyTokens) {
  const auto ops = make_test_ops();
  NormRun run(300, 61);
  run.dweight.assign(run.dweight.size(), 0.0f);
  run.run(*ops);
  const Doubles x = widen(run.x);
  const Doubles dy = widen(run.dy);
  const Doubles dweight = reference::gradient(widen(run.weight), [&](const Doubles& moved) {
    return reference::dot(dy, reference::rms_norm(x, moved, run.kEpsilon));
  });
  EXPECT_LE(relative_error(run.dweight, dweight), 2e-6);
}

TEST(Rows, BiasGradientSumsOverTokens) {
  const auto ops = make_test_ops();
  for (const int64_t tokens : {int64_t{1}, kTokenChunk, 2 * kTokenChunk + 1}) {
    for (const int64_t width : {int64_t{7}, kColumnBlock + 5}) {
      const std::vector<float> dy = random_floats(tokens * width, 1);
      std::vector<float> dbias = random_floats(width, 2);
      Doubles want = widen(dbias);
      for (int64_t i = 0; i < tokens * width; ++i)
        want[at(i % width)] += static_cast<double>(dy[at(i)]);
      add_over_tokens(*ops, BiasGradientF32{dy.data(), nullptr, tokens, width, kTokenChunk}, dbias);
      EXPECT_LE(relative_error(dbias, want), 2e-6) << tokens << " x " << width;
    }
  }
}

// Of more tokens than kMostTokenChunks chunks of kTokenChunk have, chunks are longer: the partial
// sums of that many chunks are all that `scratch` has room for.
TEST(Rows, SumsOverManyTokensTakeLongerChunks) {
  const auto ops = make_test_ops();
  constexpr int64_t kWidth = 16;
  Memory memory("host", make_host_backing(), 0);
  Arena scratch(memory, Purpose::workspace,
                kMostTokenChunks * kWidth * static_cast<int64_t>(sizeof(float)));
  Context context{*ops, scratch, nullptr, true};
  for (const int64_t tokens : {kMostTokenChunks * kTokenChunk + 1, int64_t{70001}}) {
    const std::vector<float> dy = random_floats(tokens * kWidth, 1);
    std::vector<float> dbias = random_floats(kWidth, 2);
    Doubles want = widen(dbias);
    for (int64_t i = 0; i < tokens * kWidth; ++i) {
      want[at(i % kWidth)] += static_cast<double>(dy[at(i)]);
    }
    add_over_tokens(context, BiasGradientF32{dy.data(), nullptr, tokens, kWidth, 0},
                    Tensor(dbias.data(), DType::f32, {kWidth}));
    EXPECT_LE(relative_error(dbias, want), 2e-6) << tokens;
  }
}

TEST(RmsNorm, BitsDoNotDependOnThreads) {
  for (const int64_t hidden : {61, 576}) {
    NormRun one(300, hidden);
    one.run(*make_test_ops(1));
    for (const int threads : {2, 3}) {
      NormRun run(300, hidden);
      run.run(*make_test_ops(threads));
      EXPECT_EQ(one.y, run.y);
      EXPECT_EQ(one.rstd, run.rstd);
      EXPECT_EQ(one.dx, run.dx);
      EXPECT_EQ(one.dweight, run.dweight);
    }
  }
}

TEST(Rotary, MatchesTheReferenceAndItsDifferences) {
  const auto ops = make_test_ops();
  for (const int64_t head_dim : {2, 52, 64, 128}) {
    for (const int64_t heads : {1, 3}) {
      constexpr int64_t kTokens = 5;
      constexpr int64_t kPositions = 9;
      const std::vector<int32_t> positions = some_indices(kTokens, kPositions, 1);
      std::vector<float> cosine, sine;
      for (int64_t i = 0; i < kPositions * head_dim / 2; ++i) {
        cosine.push_back(std::cos(static_cast<float>(i)));
        sine.push_back(std::sin(static_cast<float>(i)));
      }
      const auto launch = [&](Strided<float>& x, float direction) {
        ops->launch(RotaryEmbeddingF32{x.view().data<float>(), x.view().data<float>(),
                                       positions.data(), cosine.data(), sine.data(), heads,
                                       head_dim, x.view().row_stride(), direction},
                    kTokens);
      };
      const auto rotate = [&](const Doubles& x) {
        return reference::rotary(x, positions, widen(cosine), widen(sine), heads, head_dim);
      };
      auto x = Strided<float>::random(kTokens, heads * head_dim, 11, 2);
      const Doubles before = widen(x.values());
      launch(x, 1.0f);
      EXPECT_LE(relative_error(x.values(), rotate(before)), kRowTolerance) << head_dim;
      EXPECT_TRUE(x.gaps_intact());

      auto gradient = Strided<float>::random(kTokens, heads * head_dim, 11, 3);
      const Doubles dy = widen(gradient.values());
      launch(gradient, -1.0f);
      const Doubles dx = reference::gradient(
          before, [&](const Doubles& moved) { return reference::dot(dy, rotate(moved)); });
      EXPECT_LE(relative_error(gradient.values(), dx), kRowTolerance) << head_dim;
    }
  }
}

TEST(Swiglu, MatchesTheReferenceAndItsDifferences) {
  const auto ops = make_test_ops();
  for (const int64_t width : {1, 43, 341}) {
    for (const int64_t tokens : {1, 3}) {
      std::vector<float> gate = random_floats(tokens * width, 1);
      for (float& g : gate) g *= 8.0f;  // far enough out for sigmoid to saturate
      const std::vector<float> up = random_floats(tokens * width, 2);
      const std::vector<float> dh = random_floats(tokens * width, 3);
      std::vector<float> h(gate.size()), dgate(gate.size()), dup(gate.size());
      ops->launch(SwigluForwardF32{gate.data(), up.data(), h.data(), width}, tokens);
      ops->launch(
          SwigluBackwardF32{gate.data(), up.data(), dh.data(), dgate.data(), dup.data(), width},
          tokens);
      const Doubles g = widen(gate);
      const Doubles u = widen(up);
      EXPECT_LE(relative_error(h, reference::swiglu(g, u)), kRowTolerance) << width;
      const Doubles want_gate = reference::gradient(g, [&](const Doubles& moved) {
        return reference::dot(widen(dh), reference::swiglu(moved, u));
      });
      const Doubles want_up = reference::gradient(u, [&](const Doubles& moved) {
        return reference::dot(widen(dh), reference::swiglu(g, moved));
      });
      EXPECT_LE(relative_error(dgate, want_gate), kRowTolerance) << width;
      EXPECT_LE(relative_error(dup, want_up), kRowTolerance) << width;

      std::vector<float> in_place = dh;  // dgate may be dh
      std::vector<float> dup_again(gate.size());
      ops->launch(SwigluBackwardF32{gate.data(), up.data(), in_place.data(), in_place.data(),
                                    dup_again.data(), width},
                  tokens);
      EXPECT_EQ(in_place, dgate);
      EXPECT_EQ(dup_again, dup);
    }
  }
}

std::vector<bf16> rounded(const std::vector<float>& values) {
  std::vector<bf16> out;
  for (const float value : values) out.push_back(to_bf16(value));
  return out;
}
std::vector<float> widened(const std::vector<bf16>& values) {
  std::vector<float> out;
  for (const bf16 value : values) out.push_back(to_float(value));
  return out;
}

// From and to bf16 each of these is the function of f32, rounded once. Compilers may contract the
// two differently.
TEST(RmsNorm, OfBf16IsTheRoundedFunctionOfTheSameValues) {
  constexpr double kOnce = 0x1p-8 + kRowTolerance;  // of the largest element
  const auto ops = make_test_ops();
  const int64_t tokens = 3;
  const int64_t hidden = 77;
  NormRun run(tokens, hidden);
  const std::vector<bf16> x = rounded(run.x);
  run.x = widened(x);
  std::vector<float> dx = run.dx, dweight = run.dweight, rstd(run.rstd.size());
  run.run(*ops);
  std::vector<bf16> y(run.y.size()), from_f32(run.y.size()), applied(run.y.size());
  ops->launch(RmsNormForwardF32Bf16{run.x.data(), run.weight.data(), from_f32.data(), rstd.data(),
                                    hidden, NormRun::kEpsilon},
              tokens);
  EXPECT_LE(relative_error(widened(from_f32), widen(run.y)), kOnce);
  ops->launch(RmsNormForwardBf16{x.data(), run.weight.data(), y.data(), rstd.data(), hidden,
                                 NormRun::kEpsilon},
              tokens);
  EXPECT_LE(relative_error(rstd, widen(run.rstd)), kRowTolerance);
  EXPECT_LE(relative_error(widened(y), widen(run.y)), kOnce);
  ops->launch(
      RmsNormApplyF32Bf16{run.x.data(), run.weight.data(), rstd.data(), applied.data(), hidden},
      tokens);
  EXPECT_LE(relative_error(widened(applied), widen(run.y)), kOnce);
  ops->launch(RmsNormApplyBf16{x.data(), run.weight.data(), rstd.data(), applied.data(), hidden},
              tokens);
  EXPECT_LE(relative_error(widened(applied), widen(run.y)), kOnce);
  ops->launch(RmsNormBackwardBf16{x.data(), run.weight.data(), rstd.data(), run.dy.data(),
                                  dx.data(), hidden},
              tokens);
  EXPECT_LE(relative_error(dx, widen(run.dx)), kRowTolerance);
  add_over_tokens(*ops,
                  RmsNormWeightGradientBf16{x.data(), rstd.data(), run.dy.data(), nullptr, tokens,
                                            hidden, kTokenChunk},
                  dweight);
  EXPECT_LE(relative_error(dweight, widen(run.dweight)), kRowTolerance);
}

TEST(Rotary, OfBf16IsTheRoundedFunctionOfTheSameValues) {
  const auto ops = make_test_ops();
  const std::vector<int32_t> positions = {0, 3, 1};
  const std::vector<float> cosine = random_floats(4 * 13, 1), sine = random_floats(4 * 13, 2);
  std::vector<bf16> x = rounded(random_floats(3 * 2 * 26, 3));
  std::vector<float> f32 = widened(x);
  ops->launch(RotaryEmbeddingBf16{x.data(), x.data(), positions.data(), cosine.data(), sine.data(),
                                  2, 26, 52, 1.0f},
              3);
  ops->launch(RotaryEmbeddingF32{f32.data(), f32.data(), positions.data(), cosine.data(),
                                 sine.data(), 2, 26, 52, 1.0f},
              3);
  EXPECT_EQ(widened(x), widened(rounded(f32)));

  // From f32 to bf16, as of a gradient, backwards.
  const std::vector<float> gradient = random_floats(3 * 2 * 26, 4);
  std::vector<bf16> narrow(gradient.size());
  ops->launch(RotaryEmbeddingF32Bf16{gradient.data(), narrow.data(), positions.data(),
                                     cosine.data(), sine.data(), 2, 26, 52, -1.0f},
              3);
  f32 = gradient;
  ops->launch(RotaryEmbeddingF32{f32.data(), f32.data(), positions.data(), cosine.data(),
                                 sine.data(), 2, 26, 52, -1.0f},
              3);
  EXPECT_EQ(widened(narrow), widened(rounded(f32)));
}

TEST(Rows, BiasGradientOfBf16SumsTheSameValues) {
  const auto ops = make_test_ops();
  const int64_t tokens = 2 * kTokenChunk + 1, width = 19;
  const std::vector<bf16> narrow = rounded(random_floats(tokens * width, 1));
  const std::vector<float> wide = widened(narrow);
  std::vector<float> of_narrow(at(width)), of_wide(at(width));
  add_over_tokens(*ops, BiasGradientBf16{narrow.data(), nullptr, tokens, width, kTokenChunk},
                  of_narrow);
  add_over_tokens(*ops, BiasGradientF32{wide.data(), nullptr, tokens, width, kTokenChunk}, of_wide);
  EXPECT_EQ(of_narrow, of_wide);
}

TEST(Swiglu, OfBf16IsTheRoundedFunctionOfTheSameValues) {
  const auto ops = make_test_ops();
  const int64_t width = 77;
  std::vector<float> gate_f32 = random_floats(width, 1);
  for (float& value : gate_f32) value *= 4.0f;
  const std::vector<bf16> gate = rounded(gate_f32);
  gate_f32 = widened(gate);
  const std::vector<bf16> up = rounded(random_floats(width, 2));
  const std::vector<float> up_f32 = widened(up);
  std::vector<bf16> dh = rounded(random_floats(width, 3));
  const std::vector<float> dh_f32 = widened(dh);
  std::vector<bf16> h(dh.size()), dup(dh.size());
  std::vector<float> want_h(dh.size()), want_dgate(dh.size()), want_dup(dh.size());
  ops->launch(SwigluForwardBf16{gate.data(), up.data(), h.data(), width}, 1);
  ops->launch(SwigluForwardF32{gate_f32.data(), up_f32.data(), want_h.data(), width}, 1);
  ops->launch(SwigluBackwardBf16{gate.data(), up.data(), dh.data(), dh.data(), dup.data(), width},
              1);
  ops->launch(SwigluBackwardF32{gate_f32.data(), up_f32.data(), dh_f32.data(), want_dgate.data(),
                                want_dup.data(), width},
              1);
  EXPECT_EQ(widened(h), widened(rounded(want_h)));
  EXPECT_EQ(widened(dh), widened(rounded(want_dgate)));  // dgate took its place
  EXPECT_EQ(widened(dup), widened(rounded(want_dup)));
}

TEST(Swiglu, SaturatesWithoutNaN) {
  const auto ops = make_test_ops();
  const std::vector<float> gate = {-1e30f, -200.0f, -89.0f, 0.0f, 89.0f, 200.0f, 1e30f};
  const std::vector<float> ones(gate.size(), 1.0f);
  std::vector<float> h(gate.size()), dgate(gate.size()), dup(gate.size());
  const auto width = static_cast<int64_t>(gate.size());
  ops->launch(SwigluForwardF32{gate.data(), ones.data(), h.data(), width}, 1);
  ops->launch(
      SwigluBackwardF32{gate.data(), ones.data(), ones.data(), dgate.data(), dup.data(), width}, 1);
  for (size_t i = 0; i < gate.size(); ++i) {
    EXPECT_TRUE(std::isfinite(h[i])) << gate[i];
    EXPECT_TRUE(std::isfinite(dgate[i])) << gate[i];
    EXPECT_EQ(dup[i], h[i]) << gate[i];
  }
  EXPECT_EQ(h[6], 1e30f);
}

TEST(Rows, GatherScatterAndScatterAdd) {
  for (const int threads : {1, 2, 3}) {
    const auto ops = make_test_ops(threads);
    for (const int64_t width : {1, 61, 64, 576}) {
      constexpr int64_t kRows = 50;
      constexpr int64_t kTable = 83;
      const std::vector<float> table = random_floats(kTable * width, 1);
      const std::vector<float> rows = random_floats(kRows * width, 2);
      const std::vector<int32_t> repeating = some_indices(kRows, 11, 3);
      std::vector<int32_t> distinct;
      for (int32_t i = 0; i < kRows; ++i) {
        distinct.push_back(static_cast<int32_t>(i * 7 % kTable));
      }

      std::vector<float> gathered(rows.size());
      ops->launch(GatherRows{table.data(), repeating.data(), gathered.data(), width}, kRows);
      std::vector<float> scattered = table;
      ops->launch(ScatterRows{rows.data(), distinct.data(), scattered.data(), width}, kRows);
      std::vector<float> added = table;
      ops->launch(ScatterAddRows{rows.data(), repeating.data(), added.data(), kRows, width},
                  ScatterAddRows::kResidues * ceil_div(width, kColumnBlock));

      std::vector<float> want_gathered, want_scattered = table, want_added = table;
      for (size_t row = 0; row < at(kRows); ++row) {
        for (size_t i = 0; i < at(width); ++i) {
          const float value = rows[row * at(width) + i];
          want_gathered.push_back(table[at(repeating[row]) * at(width) + i]);
          want_scattered[at(distinct[row]) * at(width) + i] = value;
          want_added[at(repeating[row]) * at(width) + i] +=
              value;  // in row order, so equal in bits
        }
      }
      EXPECT_EQ(gathered, want_gathered);
      EXPECT_EQ(scattered, want_scattered);
      EXPECT_EQ(added, want_added);
    }
  }
}

// Keys and values go where the positions say, and nothing else of the cache changes.
template <class T>
void expect_cached(int64_t width) {
  constexpr int64_t kCapacity = 9;
  const std::vector<int32_t> positions = {6, 3, 4};
  const auto tokens = static_cast<int64_t>(positions.size());
  Strided<T> k = Strided<T>::random(tokens, width, 0, 1);
  Strided<T> v = Strided<T>::random(tokens, width, 0, 2);
  Strided<T> keys = Strided<T>::random(kCapacity, width, 0, 3);
  Strided<T> values = Strided<T>::random(kCapacity, width, 0, 4);
  const auto expected = [&](const Strided<T>& cache, const Strided<T>& added) {
    std::vector<float> out = cache.values();
    for (size_t row = 0; row < positions.size(); ++row) {
      for (size_t i = 0; i < at(width); ++i) {
        out[at(positions[row]) * at(width) + i] = added.values()[row * at(width) + i];
      }
    }
    return out;
  };
  const std::vector<float> want_keys = expected(keys, k);
  const std::vector<float> want_values = expected(values, v);
  const auto ops = make_test_ops();
  ops->launch(CacheKeysAndValues<T>{k.view().template data<T>(), v.view().template data<T>(),
                                    positions.data(), keys.view().template data<T>(),
                                    values.view().template data<T>(), width},
              tokens);
  EXPECT_EQ(keys.values(), want_keys) << width;
  EXPECT_EQ(values.values(), want_values) << width;
}

TEST(Rows, KeysAndValuesOfNewTokensAreCached) {
  for (const int64_t width : {1, 13, 64, 1032}) {
    expect_cached<float>(width);
    expect_cached<bf16>(width);
  }
}

// Adding scattered gradients is the transpose of gathering.
TEST(Rows, ScatterAddIsTheGradientOfGather) {
  const auto ops = make_test_ops();
  constexpr int64_t kWidth = 13;
  const std::vector<int32_t> indices = {2, 0, 2, 2, 4};
  const std::vector<float> table = random_floats(5 * kWidth, 1);
  const std::vector<float> dy = random_floats(5 * kWidth, 2);
  std::vector<float> dtable(table.size(), 0.0f);
  ops->launch(ScatterAddRows{dy.data(), indices.data(), dtable.data(), 5, kWidth},
              ScatterAddRows::kResidues * ceil_div(kWidth, kColumnBlock));
  const Doubles want = reference::gradient(widen(table), [&](const Doubles& moved) {
    double sum = 0.0;
    for (size_t i = 0; i < dy.size(); ++i) {
      const size_t row = at(indices[i / kWidth]);
      sum += static_cast<double>(dy[i]) * moved[row * kWidth + i % kWidth];
    }
    return sum;
  });
  EXPECT_LE(relative_error(dtable, want), kRowTolerance);
}

}  // namespace
}  // namespace jackscrew
