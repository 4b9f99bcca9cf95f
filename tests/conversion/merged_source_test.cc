// What a merged model says of a base that lacks something.
#include "conversion/merged_source.h"

#include <gtest/gtest.h>

#include "tests/cli/expect_refused.h"
#include "tests/cli/run_program.h"
#include "tests/support/golden.h"
#include "tests/support/untied_source.h"

namespace jackscrew {
namespace {

TEST(MergedSource, NamesTheModelThatLacksATensor) {
  const TemporaryDirectory directory("jackscrew_merged_source");
  const fs::path model = directory.path() / "model";
  fs::copy(golden_model("gqa_tied"), model);
  std::string bytes = read_text(model / "model.safetensors");
  const std::string name = "model.layers.1.self_attn.q_proj.weight";
  // Of this no warning is said.
  bytes.replace(bytes.find(name), name.size(), "model.layers.1.self_attn.qproj.k_scale");
  write_text_atomic(model / "model.safetensors", bytes);
  expect_refused(run("merge model=" + model.string() + " adapter=" + golden_model("lora") +
                     " output_dir=" + (directory.path() / "merged").string() + kErrorsOnly),
                 5,
                 {model.string() + ": tensor " + name + " is missing",
                  "hint: the file is incomplete, or config.json belongs to another model"});
}

TEST(MergedSource, HasTheHeadThatRepeatsTheEmbeddingOverAnUntiedModel) {
  const ModelFiles files = untied(open_model(golden_path("gqa_tied").string()));
  const std::string adapter = golden_path("lora_saved_tied").string();
  const PeftAdapter read = read_peft_adapter(adapter);
  ASSERT_TRUE(read.repeated_head);
  const MergedSource merged(make_recipe({}), files, {WeightedAdapter{adapter}});
  const StoredTensor* head = merged.find("lm_head.weight");
  ASSERT_NE(head, nullptr);
  ASSERT_TRUE(head->computed);
  const Tensor rows = head->computed(0, files.config.vocab_size);
  EXPECT_EQ(std::vector<float>(rows.data<float>(), rows.data<float>() + rows.size()),
            read.repeated_head->values());
}

TEST(MergedSource, AsksForRoomBeforeItReads) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const WeightedAdapter adapter{golden_path("lora").string()};
  std::vector<int64_t> asked, held;
  const MergedSource merged(make_recipe({}), files, {adapter},
                            [&](int64_t bytes, int64_t held_then) {
                              asked.push_back(bytes);
                              held.push_back(held_then);
                            });
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[0], merged.held_bytes());
  EXPECT_EQ(asked[1], merged.most_bytes() - merged.held_bytes());
  EXPECT_EQ(held, (std::vector<int64_t>{0, merged.held_bytes()}));
  int64_t values = 0;
  for (const PeftTensor& tensor : read_peft_adapter(adapter.directory).tensors) {
    values += tensor.size() * int64_t{sizeof(float)};
  }
  EXPECT_GE(merged.held_bytes(), values);
  EXPECT_GT(asked[1], 0);
}

}  // namespace
}  // namespace jackscrew
