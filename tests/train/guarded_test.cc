// A run on a device whose memory the host cannot see gives the bits of one on the CPU: nothing
// looks at tensors but through Ops.
#include <gtest/gtest.h>

#include "tests/support/device_run.h"
#include "tests/support/guarded_device.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

class GuardedTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GuardedTest, GivesTheBitsOfTheCpu) {
  const DeviceOutcome guarded =
      DeviceRun(GetParam(), 6, std::make_shared<GuardedDevice>(test_isa())).run();
  const DeviceOutcome plain = DeviceRun(GetParam()).run();
  EXPECT_EQ(guarded.losses, plain.losses);
  EXPECT_EQ(guarded.answer, plain.answer);
  EXPECT_EQ(guarded.files.size(), 1u);
  EXPECT_TRUE(guarded.files == plain.files);
}

INSTANTIATE_TEST_SUITE_P(
    Methods, GuardedTest,
    ::testing::Values("method=full", "method=full optimizer=adamw_8bit gradient_checkpointing=true",
                      "method=full storage=bf16", "method=full product=int8 storage=int8_row",
                      "method=lora storage=bf16", "method=lora storage=nf4 product=int8",
                      "method=full product=int8 product_exclude=q_proj,lm_head",
                      "method=full product=int8 int8_dw=int8", "method=full product=int4",
                      "method=full product=int4 int4_mode=paper int4_block=search "
                      "int4_cold_steps=2 storage=bf16",
                      "method=lora product=w4a8 storage=nf4",
                      "method=lora product=w4a8 storage=int4_hadamard",
                      "method=lora storage=int4_hadamard",
                      "method=lora storage=nf4_double lora_dropout=0.1",
                      "method=lora storage=nf4 use_dora=true", "method=lora storage=int8_affine",
                      "method=lora storage=int8_dynamic", "method=prompt storage=nf4",
                      "method=rotary active_params=50% steps_per_rotation=2",
                      "method=rotary active_params=50% steps_per_rotation=2 storage=int8 "
                      "moments=keep master=ram",
                      "method=rotary active_params=50% steps_per_rotation=2 master=mmap "
                      "master_dtype=bf16",
                      "method=galore projection_update_gap=3 storage=bf16 weight_decay=0.1",
                      "method=galore projection_update_gap=3 subspace=svd subspace_basis=aligned",
                      "method=qgalore projection_update_gap=3 projection_window=2 "
                      "gradient_accumulation_steps=2",
                      "method=full update=fused max_grad_norm=0 gradient_accumulation_steps=2"));

TEST(GuardedDevice, FindsWhatItIsThereFor) {
  const GuardedDevice device(test_isa());
  Memory memory("device", device.make_backing(), 0);
  const auto ops = device.make_ops(memory);
  const OwnedTensor x(memory, Purpose::workspace, DType::f32, {1, 4});
  std::vector<float> host(4, 1.0f);
  ops->copy(x.view(), Tensor(host.data(), DType::f32, {1, 4}));
  EXPECT_DEATH(host[0] = x.view().data<float>()[0], "");
  EXPECT_THROW(ops->zero(Tensor(host.data(), DType::f32, {1, 4})), Error);
}

}  // namespace
}  // namespace jackscrew
