// attention=cudnn on the emulation, where the library gives what our own attention gives.
#include <gtest/gtest.h>

#include "tests/kernels/kernel_data.h"
#include "tests/support/cuda_emulation/machine.h"
#include "tests/support/device_run.h"
#include "tests/support/errors.h"
#include "tests/support/test_ops.h"
#include "tests/support/train_quietly.h"

namespace jackscrew {
namespace {

using cuda_emulation::machine;

class CudaCudnn : public ::testing::Test {
 protected:
  CudaCudnn() { machine() = {}; }
  ~CudaCudnn() override { machine() = {}; }

  static void expect_refused(const std::string& settings, ErrorKind kind,
                             const std::string& words) {
    const std::string refusal = error_of(kind, [&] { DeviceRun(settings).run(); });
    EXPECT_NE(message_of(refusal).find(words), std::string::npos) << refusal;
    EXPECT_NE(hint_of(refusal), "");
  }
};

TEST_F(CudaCudnn, IsCalledInARunAndOnlyWhereItIsChosen) {
  const std::string settings = "method=full product=bf16 device=cuda:0";
  const DeviceOutcome own = DeviceRun(settings).run();
  EXPECT_EQ(machine().cudnn_calls, 0);
  const DeviceOutcome cudnn = DeviceRun(settings + " attention=cudnn").run();
  EXPECT_GT(machine().cudnn_calls, 0);
  EXPECT_EQ(cudnn.losses, own.losses);
  EXPECT_EQ(cudnn.answer, own.answer);
  EXPECT_TRUE(cudnn.files == own.files);
}

TEST_F(CudaCudnn, TakesTheMemoryThatWasPlanned) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const Recipe recipe = make_recipe(
      settings_of("device=cuda:0 sequence_len=24 method=lora product=bf16 attention=cudnn"));
  const SessionPlan plan = Session::rehearse(recipe, files, training_use(24));
  Session session(recipe, files, training_use(24), plan);
  session.accumulate(step_of({random_micro_batch(files.config.vocab_size, {24}, 1)}), 1e-3, 0);
  EXPECT_TRUE(session.update({}).finite);
  EXPECT_GT(machine().cudnn_calls, 0);
  EXPECT_EQ(session.memory().ledger().peak, plan.ledger.peak);
}

// Where micro-batches are never alike, plans do not pile up; and recorded work does not outlive
// them.
TEST_F(CudaCudnn, ForgetsShapesBeforeTheyAreTooMany) {
  constexpr int64_t kMost = 128;  // see CudaOps
  constexpr int64_t kTokens = kMost + 20;
  const auto device = open_device(
      "cuda:0",
      {.threads = 1, .isa = test_isa(), .environments = {}, .attention = AttentionLibrary::cudnn});
  Memory memory("device", device->make_backing(), 0);
  const auto ops = device->make_ops(memory);
  Arena scratch(memory, Purpose::workspace, int64_t{1} << 20);
  constexpr int64_t kHeadDim = 16;
  const OwnedTensor rows(memory, Purpose::io, DType::bf16, {kTokens, kHeadDim});
  const OwnedTensor out(memory, Purpose::io, DType::bf16, {kTokens, kHeadDim});
  const OwnedTensor lse(memory, Purpose::io, DType::f32, {kTokens});
  const OwnedTensor cu_seqlens(memory, Purpose::io, DType::i32, {2});
  std::vector<bf16> values;
  for (const float value : random_floats(kTokens * kHeadDim, 1)) {
    values.push_back(from_float<bf16>(value));
  }
  ops->copy(rows.view(), Tensor(values.data(), DType::bf16, {kTokens, kHeadDim}));
  const auto attention = [&](int64_t tokens) {
    std::vector<int32_t> ends = {0, static_cast<int32_t>(tokens)};
    ops->copy(cu_seqlens.view(), Tensor(ends.data(), DType::i32, {2}));
    ops->zero(lse.view());
    const Tensor in = rows.view().rows(0, tokens);
    const AttentionShape shape{cu_seqlens.view(), cu_seqlens.view(), 1, 1, 1, kHeadDim, 0.25f, 0,
                               DType::bf16};
    ops->repeat({tokens}, [&] {
      ops->attention_forward(shape, in, in, in, out.view().rows(0, tokens),
                             lse.view().columns(0, tokens).reshaped({1, tokens}), scratch);
    });
    std::vector<float> sums(at(kTokens));
    ops->copy(Tensor(sums.data(), DType::f32, {kTokens}), lse.view());
    return sums;
  };
  const std::vector<float> first = attention(1);
  for (int64_t tokens = 1; tokens <= kTokens; ++tokens) {
    attention(tokens);
    EXPECT_LE(machine().cudnn_shapes, at(kMost));
  }
  EXPECT_LT(machine().cudnn_shapes, at(kMost));
  EXPECT_EQ(attention(1), first);
  EXPECT_EQ(attention(1), first);
}

TEST_F(CudaCudnn, SaysWhereItCannotBe) {
  const std::string chosen = "method=lora attention=cudnn ";
  expect_refused(chosen + "product=f32 device=cuda:0", ErrorKind::usage, "takes tensors of bf16");
  expect_refused(chosen + "product=int8 device=cuda:0", ErrorKind::usage, "takes tensors of bf16");
  expect_refused(chosen + "product=bf16 product_exclude=lm_head device=cuda:0", ErrorKind::usage,
                 "product=bf16 and product_exclude does not have");
  expect_refused(chosen + "product=f32 device=cpu", ErrorKind::usage, "a run on cpu");
  machine().cudnn = 0;
  expect_refused(chosen + "product=bf16 device=cuda:0", ErrorKind::device, "none is found");
}

}  // namespace
}  // namespace jackscrew
