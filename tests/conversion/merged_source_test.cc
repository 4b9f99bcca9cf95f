// What a merged model says of a base that lacks something.
#include <gtest/gtest.h>

#include "tests/cli/expect_refused.h"
#include "tests/cli/run_program.h"

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

}  // namespace
}  // namespace jackscrew
