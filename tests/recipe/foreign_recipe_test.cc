#include "recipe/foreign_recipe.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"
#include "recipe/recipe.h"
#include "recipe/recipe_file.h"

namespace jackscrew {
namespace {

RecipeReport report_of(const char* text) {
  const fs::path file =
      fs::temp_directory_path() / fmt::format("jackscrew_foreign_{}.yaml", ::getpid());
  write_text_atomic(file, text);
  const RecipeReport report =
      report_recipe(read_recipe_entries(file), run_options(method_tables()));
  fs::remove(file);
  return report;
}

// One key of another meaning shows whose recipe it is.
TEST(ForeignRecipe, NestedDataSetsAreForeign) {
  const RecipeReport report =
      report_of("base_model: hf\ndatasets:\n  - path: a.jsonl\n    type: chat_template\n");
  EXPECT_TRUE(report.is_foreign);
  ASSERT_EQ(report.unknown.size(), 1u);
  EXPECT_EQ(report.unknown[0].key, "datasets");
  EXPECT_TRUE(report.unknown[0].hint.starts_with("data: [FILE, FILE]; field_messages"))
      << report.unknown[0].hint;
  EXPECT_FALSE(report_of("base_model: hf\ndatasets: [a.jsonl, b.jsonl]\n").is_foreign);
  EXPECT_FALSE(report_of("base_model: hf\ndata: [[a.jsonl]]\n").is_foreign);
}

// Keys of transformers' own scripts.
TEST(ForeignRecipe, KeysOfTransformersNameNoProgram) {
  const RecipeReport report = report_of(
      "model_name_or_path: hf\ndo_train: true\ndataloader_num_workers: 4\nbf16: false\n"
      "overwrite_output_dir: true\npreprocessing_num_workers: 4\n");
  EXPECT_TRUE(report.is_foreign);
  EXPECT_EQ(report.program, "");
  ASSERT_EQ(report.unknown.size(), 5u);
  EXPECT_EQ(report.unknown[2].hint, "leave it out");
  EXPECT_EQ(report_of("stage: sft\ncutoff_len: 8\ntemplate: chatml\nbf16: true\n").program,
            "LLaMA-Factory");
}

// Two slips in a recipe of one's own look like another program's.
TEST(ForeignRecipe, NearNamesAreHints) {
  const RecipeReport report =
      report_of("model: hf\nlearning_rat: 1\nmicro_batch_siz: 2\nsomething_new: 1\n");
  ASSERT_EQ(report.unknown.size(), 3u);
  EXPECT_EQ(report.unknown[0].hint, "did you mean learning_rate?");
  EXPECT_EQ(report.unknown[1].hint, "did you mean micro_batch_size?");
  EXPECT_EQ(report.unknown[2].hint, "");
}

// What an option says of a value that it does not take, its hint too.
TEST(ForeignRecipe, ValuesThatAreRefusedKeepTheirHints) {
  const RecipeReport report = report_of("base_model: hf\noptim: adamw_torch\nseed: x\n");
  ASSERT_EQ(report.unknown.size(), 2u);
  EXPECT_TRUE(report.unknown[0].hint.starts_with("optimizer is \"adamw_torch\", expected one of "))
      << report.unknown[0].hint;
  EXPECT_TRUE(report.unknown[0].hint.ends_with("; optimizer=adamw")) << report.unknown[0].hint;
  EXPECT_TRUE(report.unknown[1].hint.starts_with("seed is \"x\", expected a whole number"))
      << report.unknown[1].hint;
}

}  // namespace
}  // namespace jackscrew
