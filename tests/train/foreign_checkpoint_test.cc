// Directories of an output_dir that are named like checkpoints and are none of this program's.
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

TEST(SlowForeignCheckpoint, IsNeitherGoneOnFromNorRemoved) {
  const TinyRun tiny("foreign_checkpoint");
  const std::string settings = "report_samples=0 save_steps=2 save_total_limit=1 max_steps=";
  const auto expect_theirs = [&] {
    EXPECT_EQ(tiny.text("out/checkpoint-1/model.safetensors"), "theirs");
    EXPECT_EQ(tiny.text("out/checkpoint-500/model.safetensors"), "theirs");
  };
  tiny.must_train("out", settings + "4");
  for (const char* name : {"out/checkpoint-1", "out/checkpoint-500"}) {
    fs::create_directories(tiny.path(name));
    tiny.file(std::string(name) + "/model.safetensors", "theirs");
  }
  // The longer run goes on from its own end.
  tiny.must_train("out", settings + "8");
  EXPECT_EQ(tiny.events("out", "start").size(), 2u);
  EXPECT_TRUE(fs::exists(tiny.path("out/checkpoint-8")));
  EXPECT_FALSE(fs::exists(tiny.path("out/checkpoint-4")));
  expect_theirs();
  tiny.must_train("out", settings + "4 overwrite=true");
  EXPECT_TRUE(fs::exists(tiny.path("out/checkpoint-4")));
  EXPECT_FALSE(fs::exists(tiny.path("out/checkpoint-8")));
  expect_theirs();
}

}  // namespace
}  // namespace jackscrew
