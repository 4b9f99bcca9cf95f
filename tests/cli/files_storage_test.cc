// Which storage the files have that a command writes, and not a run's weights in memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/cli/run_program.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

class FilesStorage : public ::testing::Test {
 protected:
  void SetUp() override { tiny_.must_train("base", "method=full max_steps=1 report_samples=0"); }

  std::string path(const std::string& name) const { return tiny_.path(name).string(); }
  // Trains an adapter of the base, with these settings.
  void train_adapter(const std::string& output, const std::string& settings) const {
    tiny_.must_train(output, fmt::format("model={} init=pretrained tokenizer=auto max_steps=1 "
                                         "report_samples=0 {}",
                                         path("base"), settings));
  }
  // The storages of what a command writes.
  static std::string written(const std::string& arguments) {
    const Outcome outcome = run(arguments + " --json");
    EXPECT_EQ(outcome.exit_code, 0) << arguments << "\n" << outcome.out;
    const auto answer = nlohmann::json::parse(outcome.out, nullptr, false);
    return answer.is_object() ? answer["storage"].dump() : "";
  }

  const TinyRun tiny_{"files_storage"};
};

TEST_F(FilesStorage, IsTheOneThatWasSetForThem) {
  train_adapter("adapter", "method=lora");
  const std::string merge =
      fmt::format("merge model={} adapter={} method=qlora ", path("base"), path("adapter"));
  const std::string directory = "output_dir=" + path("out");
  EXPECT_EQ(written(merge + directory).find("nf4"), std::string::npos);
  EXPECT_NE(written(merge + directory + " overwrite=true storage=nf4").find("nf4"),
            std::string::npos);
  EXPECT_EQ(run(merge + "output=" + path("out.gguf")).exit_code, 0);
}

// It has what its method implied as a setting of its own.
TEST_F(FilesStorage, IsNotThatOfARunWhoseRecipeIsGiven) {
  train_adapter("adapter", "method=qlora");
  const std::string recipe = path("adapter/recipe.yaml");
  ASSERT_NE(tiny_.text("adapter/recipe.yaml").find("\nstorage: nf4 "), std::string::npos);
  const std::string of_run = recipe + " adapter=" + path("adapter");
  written(fmt::format("merge model={} adapter={} output_dir={}", path("base"), path("adapter"),
                      path("plain")));
  const Outcome merged =
      run(fmt::format("merge {} output_dir={}", of_run, path("merged")) + kErrorsOnly);
  EXPECT_EQ(merged.exit_code, 0) << merged.out;
  EXPECT_NE(merged.out.find(": storage=nf4 is of the run's memory"), std::string::npos)
      << merged.out;
  EXPECT_EQ(contents(path("merged")), contents(path("plain")));
  EXPECT_NE(
      written(fmt::format("merge {} output_dir={} storage=nf4", of_run, path("asked"))).find("nf4"),
      std::string::npos);
  written(fmt::format("merge {} output={}", of_run, path("merged.gguf")));
  // Nor does it keep types from being chosen for a rate.
  const Outcome rate =
      run(fmt::format("quantize {} output={} bits=5 --dry-run 2>&1", of_run, path("rate.gguf")));
  EXPECT_EQ(rate.exit_code, 0) << rate.out;

  tiny_.must_train("rotary", "method=rotary active_params=50% max_steps=1 report_samples=0");
  written(fmt::format("export {} model={} output_dir={}", path("rotary/recipe.yaml"),
                      path("rotary"), path("exported")));
}

TEST_F(FilesStorage, IsThatOfARecipeForThem) {
  const std::string settings = fmt::format("model: {}\nstorage: nf4\n", path("base"));
  for (const char* more : {"", "method: lora\nformat: hf\n"}) {
    SCOPED_TRACE(more);
    const std::string recipe = tiny_.file("export.yaml", settings + more);
    const std::string command =
        fmt::format("export {} overwrite=true output_dir={}", recipe, path("out"));
    EXPECT_NE(written(command).find("nf4"), std::string::npos);
    EXPECT_EQ(run(command + kErrorsOnly).out.find("warning"), std::string::npos);
  }
  // Which no run could keep in memory.
  const std::string recipe = tiny_.file(
      "types.yaml", fmt::format("model: {}\nmethod: lora\nstorage: q8_0\n", path("base")));
  EXPECT_NE(written(fmt::format("export {} output={}", recipe, path("q8.gguf"))).find("q8_0"),
            std::string::npos);
}

}  // namespace
}  // namespace jackscrew
