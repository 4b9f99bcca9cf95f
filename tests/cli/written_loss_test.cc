// What is measured of a model before it gets its final name.
#include "cli/written_loss.h"

#include <gtest/gtest.h>

#include "tests/cli/run_program.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace jackscrew {
namespace {

// Another process writes the same output, where this one's file was removed.
TEST(WrittenLoss, IsOfNoModelOfAnother) {
  const TemporaryDirectory directory("jackscrew_written_loss");
  const Recipe recipe = make_recipe(
      {"model=" + golden_model("mha_untied"), "output=" + (directory.path() / "y.gguf").string()});
  const ConvertedModel model(recipe);
  ModelOutput output(recipe, "export");
  output.begin({1, 1});
  fs::remove(output.path());
  directory.file("y.gguf.jackscrew-part", "GGUF");
  expect_message(ErrorKind::generic, "was moved or removed", [&] {
    measure_written(recipe, model, {ModelFormat::gguf, {}}, Dataset(), output, {});
  });
}

}  // namespace
}  // namespace jackscrew
