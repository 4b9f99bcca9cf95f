// What is said of lengths that cannot be, and of what would mend that.
#include <gtest/gtest.h>

#include "session/plan.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace jackscrew {
namespace {

// An adapter has its virtual tokens already.
TEST(SettleLengths, NamesPromptTokensWhereTheyAreToBeChosen) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto hint = [&](const std::string& adapter) {
    Recipe recipe = make_recipe({"method=prompt", "prompt_tokens=31", "sequence_len=32"});
    recipe.adapter = adapter;
    return hint_of(error_of(ErrorKind::usage, [&] { settle_lengths(recipe, files); }));
  };
  EXPECT_EQ(hint(""), "raise sequence_len, or lower prompt_tokens");
  EXPECT_EQ(hint("runs/prompt"), "raise sequence_len");
}

TEST(SettleLengths, NamesTheLongestSequenceWhereOneIsTooLong) {
  ModelFiles files = open_model(golden_path("gqa_tied").string());
  files.config.max_position_embeddings = int64_t{1} << 24;
  const auto hint = [&](const std::string& settings) {
    Recipe recipe = make_recipe(settings_of(settings));
    return hint_of(error_of(ErrorKind::usage, [&] { settle_lengths(recipe, files); }));
  };
  EXPECT_EQ(hint("sequence_len=4194305 micro_batch_size=1"), "use sequence_len=4194304 or less");
  EXPECT_EQ(hint("sequence_len=2097153 micro_batch_size=2"),
            "lower micro_batch_size and raise gradient_accumulation_steps");
}

}  // namespace
}  // namespace jackscrew
