// What a run reads.
#include "train/run_data.h"

#include <fmt/format.h>

#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

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
