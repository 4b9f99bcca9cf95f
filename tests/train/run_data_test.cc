// What a run reads.
#include "train/run_data.h"

#include <fmt/format.h>

#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

// The recipe that such a run has left asks for them no more than its user did.
TEST(RunData, SlowSamplesAreLeftOutWhereNobodyAsksForThem) {
  constexpr int64_t kManyBytes = int64_t{1} << 50;
  const ModelConfig model = open_model("smollm2-135m").config;
  const auto left_out = [&](const char* count, const char* origin) {
    OptionSet options = run_options(method_tables());
    if (count != nullptr) options.set("report_samples", count, origin);
    RunData data;
    data.samples.resize(2);
    const std::string line = leave_out_slow_samples(data, options, 1e12, kManyBytes, model);
    EXPECT_EQ(line.empty(), !data.samples.empty());
    return data.samples.empty();
  };
  EXPECT_TRUE(left_out(nullptr, nullptr));
  EXPECT_TRUE(left_out("2", "out/recipe.yaml:90"));
  EXPECT_FALSE(left_out("3", "mine.yaml:1"));
  EXPECT_FALSE(left_out("2", kCommandLine));
}

// What a run begins from may have become another one under the same name.
TEST(SlowRunData, AnotherStartIsAnotherRun) {
  const TinyRun tiny("start");
  tiny.must_train("base", "method=full max_steps=1");
  const std::string over_base =
      "init=pretrained max_steps=1 report_samples=0 model=" + tiny.path("base").string() + " ";
  for (const auto& [method, begins] :
       {std::pair("lora", "adapter="), {"full", "lora_init=pissa lora_original_model="}}) {
    const std::string from = fmt::format("{}method={} learning_rate=1e-2 ", over_base, method);
    const std::string settings = over_base + "method=lora " + begins + tiny.path(method).string();
    tiny.must_train(method, from);
    tiny.must_train("out", settings + " overwrite=true");
    tiny.must_train(method, from + "seed=3 overwrite=true");
    const auto before = contents(tiny.path("out"));
    const Outcome other = run(tiny.train("out", settings) + " 2>&1");
    EXPECT_EQ(other.exit_code, 5) << other.out;
    EXPECT_NE(other.out.find("the model had configuration "), std::string::npos) << other.out;
    EXPECT_TRUE(contents(tiny.path("out")) == before);
  }
}

}  // namespace
}  // namespace jackscrew
