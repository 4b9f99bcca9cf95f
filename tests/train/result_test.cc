// The result of a run is not lost to another one, through the program.
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

bool says(const Outcome& outcome, const std::string& words) {
  return outcome.out.find(words) != std::string::npos;
}

// What a command left as it was: every file with its bytes.
#define EXPECT_UNCHANGED(tiny, before) EXPECT_TRUE(contents((tiny).path("out")) == (before))

TEST(SlowResult, AFinishedRunSaysSo) {
  const TinyRun tiny("finished");
  const std::string settings = "max_steps=4 method=full ";
  tiny.must_train("out", settings);
  const auto before = contents(tiny.path("out"));
  for (const char* more : {"", "threads=2 logging_steps=3", "resume=never", "save_steps=2"}) {
    const Outcome again = run(tiny.train("out", settings + more) + " 2>&1");
    EXPECT_EQ(again.exit_code, 0) << again.out;
    EXPECT_TRUE(says(again, "has the result of this recipe, 4 steps; nothing to do")) << again.out;
    EXPECT_TRUE(says(again, "to train anew and replace it, overwrite=true")) << again.out;
    // It left no checkpoint.
    EXPECT_TRUE(says(again, "with model=" + tiny.path("out").string())) << again.out;
    EXPECT_UNCHANGED(tiny, before);
  }
  // Its own recipe is the same, too.
  const Outcome by_recipe = run("train " + tiny.path("out/recipe.yaml").string() + " 2>&1");
  EXPECT_EQ(by_recipe.exit_code, 0) << by_recipe.out;
  EXPECT_TRUE(says(by_recipe, "nothing to do")) << by_recipe.out;
  EXPECT_UNCHANGED(tiny, before);
}

TEST(SlowResult, AnotherRecipeReplacesNothing) {
  const TinyRun tiny("kept_result");
  tiny.must_train("out", "max_steps=4 method=full");
  const auto before = contents(tiny.path("out"));
  const Outcome other = run(tiny.train("out", "max_steps=4 method=lora") + " 2>&1");
  EXPECT_EQ(other.exit_code, 2) << other.out;
  EXPECT_TRUE(says(other, "learner was full then and is lora now")) << other.out;
  EXPECT_UNCHANGED(tiny, before);
  // Without a checkpoint of its end it would begin anew.
  const Outcome longer = run(tiny.train("out", "max_steps=6 method=full") + " 2>&1");
  EXPECT_EQ(longer.exit_code, 2) << longer.out;
  EXPECT_TRUE(says(longer, "no checkpoint-4 to go on from")) << longer.out;
  EXPECT_UNCHANGED(tiny, before);
  tiny.must_train("out", "max_steps=4 method=lora overwrite=true");
  EXPECT_TRUE(fs::exists(tiny.path("out/adapter_model.safetensors")));
  EXPECT_FALSE(fs::exists(tiny.path("out/model.safetensors")));
}

TEST(SlowResult, AFinishedRunGoesOnToMoreSteps) {
  const TinyRun tiny("more_steps");
  const std::string settings = "save_steps=2 lr_scheduler_type=constant warmup_steps=0 max_steps=";
  tiny.must_train("whole", settings + "8");
  tiny.must_train("out", settings + "4");
  const Outcome again = run(tiny.train("out", settings + "4") + " 2>&1");
  EXPECT_TRUE(says(again, "to go on, give a larger max_steps")) << again.out;
  tiny.must_train("out", settings + "8");
  EXPECT_TRUE(tiny.text("whole/adapter_model.safetensors") ==
              tiny.text("out/adapter_model.safetensors"));
  // From a checkpoint before its end some steps would be done anew: only where told.
  fs::remove_all(tiny.path("out/checkpoint-8"));
  EXPECT_EQ(run(tiny.train("out", settings + "10") + " 2>&1").exit_code, 2);
  tiny.must_train("out",
                  settings + "10 overwrite=true resume=" + tiny.path("out/checkpoint-6").string());
  EXPECT_EQ(tiny.losses("out").size(), 10u);
}

// Whoever allowed a run to replace a result need not do so again when it goes on.
TEST(SlowResult, ARunThatReplacesGoesOn) {
  const TinyRun tiny("replacing");
  tiny.must_train("out", "max_steps=2 method=full");
  const std::string settings = "method=full seed=3 gradient_accumulation_steps=10 max_steps=60 ";
  Child child(tiny.train("out", settings + "overwrite=true"));
  ASSERT_TRUE(child.until(
      [&] { return tiny.text("out/train_log.jsonl").find("\"step\": 3,") != std::string::npos; }));
  ASSERT_EQ(child.stop(SIGINT), 130);
  EXPECT_EQ(tiny.events("out", "start").size(), 1u);
  tiny.must_train("out", settings);
  tiny.must_train("whole", settings);
  EXPECT_TRUE(tiny.text("whole/model.safetensors") == tiny.text("out/model.safetensors"));
}

}  // namespace
}  // namespace jackscrew
