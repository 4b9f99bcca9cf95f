#include <gtest/gtest.h>

#include "kernels/plan/plan_ops.h"
#include "tests/kernels/kernel_data.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

struct AttentionCase {
  std::vector<int64_t> queries, keys;  // of each sequence
  int64_t heads, kv_heads, head_dim;
  int64_t gap = 0;     // between rows, elements
  int64_t window = 0;  // see AttentionShape

  reference::Attention model() const {
    reference::Attention out;
    out.cu_q = out.cu_k = {0};
    for (const int64_t n : queries) out.cu_q.push_back(out.cu_q.back() + static_cast<int32_t>(n));
    for (const int64_t n : keys) out.cu_k.push_back(out.cu_k.back() + static_cast<int32_t>(n));
    out.heads = heads;
    out.kv_heads = kv_heads;
    out.head_dim = head_dim;
    // Larger than 1 / sqrt(head_dim): the weights should differ, or errors in them would not show.
    out.scale = 4.0 / std::sqrt(static_cast<double>(head_dim));
    out.window = window;
    return out;
  }

  std::string describe() const {
    return fmt::format("{} sequences, {} queries, {} heads of {} over {}, window {}",
                       queries.size(), model().tokens_q(), heads, head_dim, kv_heads, window);
  }
};

AttentionCase training_case(std::vector<int64_t> lengths, int64_t heads, int64_t kv_heads,
                            int64_t head_dim, int64_t gap = 0, int64_t window = 0) {
  return {lengths, lengths, heads, kv_heads, head_dim, gap, window};
}

// Inputs, results and scratch of one attention call.
struct AttentionRun {
  explicit AttentionRun(const AttentionCase& test)
      : model(test.model()),
        memory("host", make_host_backing(), 0),
        arena(memory, Purpose::workspace, int64_t{64} << 20),
        q(Strided<float>::random(model.tokens_q(), test.heads * test.head_dim, test.gap, 1)),
        k(Strided<float>::random(model.tokens_k(), test.kv_heads * test.head_dim, test.gap, 2)),
        v(Strided<float>::random(model.tokens_k(), test.kv_heads * test.head_dim, test.gap, 3)),
        dout(Strided<float>::random(model.tokens_q(), test.heads * test.head_dim, test.gap, 4)),
        out(model.tokens_q(), test.heads * test.head_dim, test.gap),
        dq(model.tokens_q(), test.heads * test.head_dim, test.gap),
        dk(model.tokens_k(), test.kv_heads * test.head_dim, test.gap),
        dv(model.tokens_k(), test.kv_heads * test.head_dim, test.gap),
        lse(test.heads, model.tokens_q(), 0) {}

  AttentionShape shape() {
    AttentionShape out_shape;
    const auto count = static_cast<int64_t>(model.cu_q.size());
    out_shape.cu_seqlens_q = Tensor(model.cu_q.data(), DType::i32, {count});
    out_shape.cu_seqlens_k = Tensor(model.cu_k.data(), DType::i32, {count});
    out_shape.sequences = count - 1;
    out_shape.num_heads = model.heads;
    out_shape.num_kv_heads = model.kv_heads;
    out_shape.head_dim = model.head_dim;
    out_shape.scale = static_cast<float>(model.scale);
    out_shape.window = model.window;
    out_shape.operands = operands;
    return out_shape;
  }

  void forward(Ops& ops, Arena& scratch) {
    ops.attention_forward(shape(), q.view(), k.view(), v.view(), out.view(), lse.view(), scratch);
  }
  void backward(Ops& ops, Arena& scratch) {
    ops.attention_backward(shape(), q.view(), k.view(), v.view(), out.view(), lse.view(),
                           dout.view(), dq.view(), dk.view(), dv.view(), scratch);
  }

  bool gaps_intact() const {
    return out.gaps_intact() && dq.gaps_intact() && dk.gaps_intact() && dv.gaps_intact();
  }

  // Lets products round their operands; what they are given is rounded already.
  void use_bf16_operands() {
    operands = DType::bf16;
    for (Strided<float>* input : {&q, &k, &v, &dout}) {
      std::vector<float> values = input->values();
      for (float& value : values) value = to_float(to_bf16(value));
      input->set(values);
    }
  }

  DType operands = DType::f32;
  reference::Attention model;
  Memory memory;
  Arena arena;
  Strided<float> q, k, v, dout, out, dq, dk, dv, lse;
};

std::vector<AttentionCase> training_cases() {
  return {
      training_case({1}, 1, 1, 64),          training_case({5, 1, 2}, 3, 3, 52, 3),
      training_case({64, 65, 63}, 4, 1, 64), training_case({128, 1, 129}, 3, 1, 64, 16),
      training_case({300}, 3, 1, 52),        training_case({17, 200}, 4, 1, 128, 7),
      training_case({300}, 2, 2, 20),        training_case({1, 1, 255, 43}, 9, 3, 64),
      training_case({300}, 2, 1, 64, 0, 1),  training_case({31, 290}, 3, 1, 20, 1, 17),
      training_case({400}, 2, 2, 52, 0, 64), training_case({300, 5}, 2, 1, 64, 0, 200),
  };
}

TEST(Attention, ForwardMatchesTheReference) {
  std::vector<AttentionCase> cases = training_cases();
  cases.push_back({{1}, {300}, 9, 3, 64});  // one new token after 299 in the cache
  cases.push_back({{1}, {2}, 4, 4, 16});
  cases.push_back({{1}, {257}, 66, 1, 128, 7});
  cases.push_back({{1}, {300}, 6, 2, 80, 3, 33});
  cases.push_back({{1}, {600}, 2, 1, 256});
  cases.push_back(
      {{1, 7, 5}, {65, 7, 130}, 4, 1, 64, 3});  // some sequences with a cache, one without
  cases.push_back({{100}, {257}, 3, 3, 52});
  cases.push_back({{1, 100}, {300, 257}, 3, 3, 52, 0, 33});
  const auto ops = make_test_ops();
  for (const AttentionCase& test : cases) {
    AttentionRun run(test);
    run.forward(*ops, run.arena);
    Doubles lse;
    const Doubles out = run.model.forward(widen(run.q.values()), widen(run.k.values()),
                                          widen(run.v.values()), &lse);
    EXPECT_LE(relative_error(run.out.values(), out), 1e-6) << test.describe();
    EXPECT_LE(relative_error(run.lse.values(), lse), 1e-6) << test.describe();
    EXPECT_TRUE(run.gaps_intact()) << test.describe();
    EXPECT_EQ(run.arena.used(), 0);
  }
}

TEST(Attention, SurvivesLargeScores) {
  const auto ops = make_test_ops();
  for (const AttentionCase& test :
       {training_case({200}, 2, 1, 64), AttentionCase{{1}, {200}, 2, 1, 64}}) {
    AttentionRun run(test);
    run.model.scale = 100.0;  // scores of +-1000: their exponentials overflow unless shifted
    run.forward(*ops, run.arena);
    const Doubles out =
        run.model.forward(widen(run.q.values()), widen(run.k.values()), widen(run.v.values()));
    // The scores themselves carry 1000 * 2^-24 of rounding into the exponent.
    EXPECT_LE(relative_error(run.out.values(), out), 1e-3);
    if (test.queries != test.keys) continue;
    run.backward(*ops, run.arena);
    for (const auto* gradient : {&run.dq, &run.dk, &run.dv}) {
      for (const float value : gradient->values()) EXPECT_TRUE(std::isfinite(value));
    }
  }
}

TEST(Attention, BackwardMatchesDifferencesOfTheReference) {
  const auto ops = make_test_ops();
  for (const AttentionCase& test :
       {training_case({1}, 1, 1, 6), training_case({4, 1, 3}, 3, 1, 6, 1),
        training_case({9}, 4, 1, 20), training_case({2, 5}, 2, 2, 52),
        training_case({9, 2}, 2, 1, 6, 0, 3)}) {
    AttentionRun run(test);
    run.forward(*ops, run.arena);
    run.backward(*ops, run.arena);
    const Doubles q = widen(run.q.values());
    const Doubles k = widen(run.k.values());
    const Doubles v = widen(run.v.values());
    const Doubles dout = widen(run.dout.values());
    const auto& model = run.model;
    const Doubles dq = reference::gradient(
        q, [&](const Doubles& x) { return reference::dot(dout, model.forward(x, k, v)); });
    const Doubles dk = reference::gradient(
        k, [&](const Doubles& x) { return reference::dot(dout, model.forward(q, x, v)); });
    const Doubles dv = reference::gradient(
        v, [&](const Doubles& x) { return reference::dot(dout, model.forward(q, k, x)); });
    Doubles formula_q, formula_k, formula_v;
    model.backward(q, k, v, dout, &formula_q, &formula_k, &formula_v);
    // One key: its weight is 1 whatever q and k are, and their gradients are rounding alone.
    const double tolerance = test.queries[0] == 1 ? 1e-5 : 2e-6;
    EXPECT_LE(relative_error(narrowed(formula_q), dq), tolerance) << test.describe();
    EXPECT_LE(relative_error(narrowed(formula_k), dk), tolerance) << test.describe();
    EXPECT_LE(relative_error(narrowed(formula_v), dv), tolerance) << test.describe();
    if (test.queries != std::vector<int64_t>{1}) {
      EXPECT_LE(relative_error(run.dq.values(), dq), tolerance) << test.describe();
      EXPECT_LE(relative_error(run.dk.values(), dk), tolerance) << test.describe();
    }
    EXPECT_LE(relative_error(run.dv.values(), dv), tolerance) << test.describe();
  }
}

TEST(Attention, BackwardMatchesTheReference) {
  const auto ops = make_test_ops();
  for (const AttentionCase& test : training_cases()) {
    AttentionRun run(test);
    run.forward(*ops, run.arena);
    run.backward(*ops, run.arena);
    Doubles dq, dk, dv;
    run.model.backward(widen(run.q.values()), widen(run.k.values()), widen(run.v.values()),
                       widen(run.dout.values()), &dq, &dk, &dv);
    if (run.model.tokens_q() > 1) {
      EXPECT_LE(relative_error(run.dq.values(), dq), 2e-6) << test.describe();
      EXPECT_LE(relative_error(run.dk.values(), dk), 2e-6) << test.describe();
    }
    EXPECT_LE(relative_error(run.dv.values(), dv), 2e-6) << test.describe();
    EXPECT_TRUE(run.gaps_intact()) << test.describe();
    EXPECT_EQ(run.arena.used(), 0);
  }
}

// Rounded are then the weights and the gradients of scores, by up to 2^-9 each.
TEST(Attention, Bf16OperandsStayNearTheReference) {
  constexpr double kTolerance = 4e-3;
  const auto ops = make_test_ops();
  std::vector<AttentionCase> cases = training_cases();
  cases.push_back(training_case({70, 150}, 2, 1, 160, 2));
  cases.push_back(training_case({130}, 2, 2, 256, 0, 70));
  cases.push_back(training_case({90}, 1, 1, 33));
  cases.push_back({{1, 7, 5}, {65, 7, 130}, 4, 1, 64, 3});
  cases.push_back({{1, 100}, {300, 257}, 3, 3, 52, 0, 33});
  for (const AttentionCase& test : cases) {
    AttentionRun run(test);
    run.use_bf16_operands();
    run.forward(*ops, run.arena);
    const Doubles q = widen(run.q.values());
    const Doubles k = widen(run.k.values());
    const Doubles v = widen(run.v.values());
    Doubles lse;
    const Doubles out = run.model.forward(q, k, v, &lse);
    EXPECT_LE(relative_error(run.out.values(), out), kTolerance) << test.describe();
    EXPECT_LE(relative_error(run.lse.values(), lse), 1e-6) << test.describe();
    if (test.queries == test.keys) {
      run.backward(*ops, run.arena);
      Doubles dq, dk, dv;
      run.model.backward(q, k, v, widen(run.dout.values()), &dq, &dk, &dv);
      if (run.model.tokens_q() > 1) {
        EXPECT_LE(relative_error(run.dq.values(), dq), kTolerance) << test.describe();
        EXPECT_LE(relative_error(run.dk.values(), dk), kTolerance) << test.describe();
      }
      EXPECT_LE(relative_error(run.dv.values(), dv), kTolerance) << test.describe();
    }
    EXPECT_TRUE(run.gaps_intact()) << test.describe();
  }
}

// Inputs and results of one attention call in bf16, as another has them in f32.
struct Bf16Run {
  explicit Bf16Run(AttentionRun& like) : of(like) {
    q.set(of.q.values());
    k.set(of.k.values());
    v.set(of.v.values());
    dout.set(of.dout.values());
  }
  static Strided<bf16> shaped(Strided<float>& like) {
    const Tensor view = like.view();
    return {view.rows(), view.cols(), view.row_stride() - view.cols()};
  }

  AttentionRun& of;
  Strided<bf16> q = shaped(of.q), k = shaped(of.k), v = shaped(of.v), dout = shaped(of.dout),
                out = shaped(of.out);
};

// What is rounded to bf16 anyway may as well lie there in bf16.
TEST(Attention, TensorsOfBf16GiveTheBitsOfTheSameInF32) {
  const auto ops = make_test_ops();
  if (!ops->has_bf16_attention()) GTEST_SKIP() << "this device's attention takes f32 alone";
  std::vector<AttentionCase> cases = training_cases();
  cases.push_back(training_case({70, 150}, 2, 1, 160, 8));
  cases.push_back(training_case({90}, 1, 1, 33));
  cases.push_back({{1, 7, 5}, {65, 7, 130}, 4, 1, 64, 3});
  // Rows at multiples of 16 bytes, which GPUs load in another way: up to three tiles, cut heads.
  cases.push_back(training_case({129, 64, 65, 1}, 4, 2, 128));
  cases.push_back(training_case({260, 30}, 2, 1, 128, 8, 70));
  cases.push_back(training_case({130, 31}, 2, 1, 256, 0, 50));
  cases.push_back(training_case({70, 200}, 2, 1, 104, 8));
  cases.push_back({{1, 100, 3}, {300, 257, 66}, 4, 2, 128, 0, 33});
  cases.push_back({{1}, {600}, 4, 2, 128});
  cases.push_back({{1}, {300}, 2, 1, 256, 0, 150});
  cases.push_back({{1}, {140}, 3, 1, 104, 8});
  for (const AttentionCase& test : cases) {
    AttentionRun f32(test);
    f32.use_bf16_operands();
    Bf16Run run(f32);
    Strided<float> lse(f32.lse.view().rows(), f32.lse.view().cols(), 0);
    f32.forward(*ops, f32.arena);
    ops->attention_forward(f32.shape(), run.q.view(), run.k.view(), run.v.view(), run.out.view(),
                           lse.view(), f32.arena);
    std::vector<float> rounded = f32.out.values();
    for (float& value : rounded) value = to_float(to_bf16(value));
    EXPECT_EQ(run.out.values(), rounded) << test.describe();
    EXPECT_EQ(lse.values(), f32.lse.values()) << test.describe();
    EXPECT_TRUE(run.out.gaps_intact()) << test.describe();
    if (test.queries != test.keys) continue;
    f32.out.set(rounded);
    f32.backward(*ops, f32.arena);
    AttentionRun got(test);
    ops->attention_backward(f32.shape(), run.q.view(), run.k.view(), run.v.view(), run.out.view(),
                            lse.view(), run.dout.view(), got.dq.view(), got.dk.view(),
                            got.dv.view(), f32.arena);
    EXPECT_EQ(got.dq.values(), f32.dq.values()) << test.describe();
    EXPECT_EQ(got.dk.values(), f32.dk.values()) << test.describe();
    EXPECT_EQ(got.dv.values(), f32.dv.values()) << test.describe();
  }
}

// A cache is given whole, with whatever lies where no token is yet.
TEST(Attention, KeysAfterTheLastSequenceAreNotRead) {
  constexpr int64_t kUnused = 200;
  const auto ops = make_test_ops();
  const AttentionCase cases[] = {{{1}, {1}, 2, 1, 64},          {{1}, {130}, 4, 2, 64},
                                 {{1}, {300}, 6, 2, 80, 3, 33}, {{1}, {70}, 3, 1, 52},
                                 {{20}, {257}, 3, 3, 52},       {{65}, {65}, 4, 1, 128, 0, 9}};
  for (const AttentionCase& test : cases) {
    for (const DType operands : {DType::f32, DType::bf16}) {
      AttentionRun run(test);
      run.operands = operands;
      run.forward(*ops, run.arena);
      AttentionRun whole(test);
      whole.operands = operands;
      const int64_t width = test.kv_heads * test.head_dim;
      const auto widened = [&](const Strided<float>& rows) {
        std::vector<float> values = rows.values();
        values.resize(values.size() + at(kUnused * width), std::nanf(""));
        Strided<float> out(run.model.tokens_k() + kUnused, width, 0);
        out.set(values);
        return out;
      };
      whole.k = widened(run.k);
      whole.v = widened(run.v);
      whole.forward(*ops, whole.arena);
      EXPECT_EQ(whole.out.values(), run.out.values()) << test.describe();
      EXPECT_EQ(whole.lse.values(), run.lse.values()) << test.describe();
    }
  }
}

TEST(Attention, RefusesTensorsOfAnotherType) {
  const auto ops = make_test_ops();
  AttentionRun f32(training_case({5}, 1, 1, 20));
  Bf16Run run(f32);
  const auto forward = [&](const Tensor& q, const Tensor& k) {
    ops->attention_forward(f32.shape(), q, k, f32.v.view(), f32.out.view(), f32.lse.view(),
                           f32.arena);
  };
  EXPECT_THROW(forward(f32.q.view(), run.k.view()), Error);
  EXPECT_THROW(forward(run.q.view(), run.k.view()), Error);
  EXPECT_THROW(ops->attention_backward(f32.shape(), f32.q.view(), f32.k.view(), f32.v.view(),
                                       f32.out.view(), f32.lse.view(), run.dout.view(),
                                       f32.dq.view(), f32.dk.view(), f32.dv.view(), f32.arena),
               Error);
}

TEST(Attention, BitsDoNotDependOnThreads) {
  for (const AttentionCase& test : training_cases()) {
    AttentionRun first(test);
    const auto one = make_test_ops(1);
    first.forward(*one, first.arena);
    first.backward(*one, first.arena);
    for (const int threads : {2, 3}) {
      AttentionRun run(test);
      const auto ops = make_test_ops(threads);
      run.forward(*ops, run.arena);
      run.backward(*ops, run.arena);
      EXPECT_EQ(first.out.values(), run.out.values()) << test.describe();
      EXPECT_EQ(first.lse.values(), run.lse.values()) << test.describe();
      EXPECT_EQ(first.dq.values(), run.dq.values()) << test.describe();
      EXPECT_EQ(first.dk.values(), run.dk.values()) << test.describe();
      EXPECT_EQ(first.dv.values(), run.dv.values()) << test.describe();
    }
  }
}

// The same numbers whether a sequence comes alone or packed behind another.
TEST(Attention, BitsDoNotDependOnPacking) {
  const auto ops = make_test_ops();
  AttentionRun packed(training_case({37, 130}, 3, 1, 64));
  AttentionRun alone(training_case({130}, 3, 1, 64));
  const auto tail = [](const Strided<float>& matrix, int64_t width) {
    const std::vector<float> values = matrix.values();
    return std::vector<float>(values.begin() + 37 * width, values.end());
  };
  alone.q.set(tail(packed.q, 192));
  alone.k.set(tail(packed.k, 64));
  alone.v.set(tail(packed.v, 64));
  alone.dout.set(tail(packed.dout, 192));
  for (const DType operands : {DType::f32, DType::bf16}) {
    for (AttentionRun* run : {&packed, &alone}) {
      run->operands = operands;
      run->forward(*ops, run->arena);
      run->backward(*ops, run->arena);
    }
    EXPECT_EQ(tail(packed.out, 192), alone.out.values());
    EXPECT_EQ(tail(packed.dq, 192), alone.dq.values());
    EXPECT_EQ(tail(packed.dk, 64), alone.dk.values());
    EXPECT_EQ(tail(packed.dv, 64), alone.dv.values());
  }
}

TEST(Attention, PlanTakesWhatTheCpuTakes) {
  for (const int threads : {1, 2, 3}) {
    const auto ops = make_test_ops(threads);
    const auto plan = make_plan_ops(threads, test_isa());
    for (const AttentionCase& test : training_cases()) {
      for (const bool backward : {false, true}) {
        AttentionRun run(test);
        if (backward) run.forward(*ops, run.arena);
        const auto attend = [&](Ops& device, Arena& arena) {
          backward ? run.backward(device, arena) : run.forward(device, arena);
        };
        Arena measured = Arena::measuring();
        attend(*plan, measured);
        // Exactly the planned bytes must do, and all of them be used.
        Arena arena(run.memory, Purpose::workspace, measured.high_water());
        attend(*ops, arena);
        EXPECT_EQ(arena.high_water(), measured.high_water()) << test.describe();
      }
    }
  }
}

}  // namespace
}  // namespace jackscrew
