// Regular expressions, and what they choose of the modules of a model.
#include "base/module_patterns.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace jackscrew {
namespace {

TEST(RegularExpressionTest, MatchesTheWholeText) {
  const RegularExpression expression(R"(.*\.(q|v)_proj)");
  EXPECT_TRUE(expression.is_whole("model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(expression.is_whole("a.v_proj"));
  EXPECT_FALSE(expression.is_whole("a.v_proj.weight"));
  EXPECT_FALSE(expression.is_whole("v_proj"));
  EXPECT_FALSE(expression.is_whole(""));
  EXPECT_TRUE(RegularExpression("a|ab").is_whole("ab"));
  EXPECT_TRUE(RegularExpression(R"(x\.(?P<layer>\d+)\.y(?<!z))").is_whole("x.12.y"));
}

TEST(RegularExpressionTest, SaysWhatIsWrong) {
  expect_message(ErrorKind::usage, "\"a(b\" is not a regular expression",
                 [] { RegularExpression("a(b"); });
  // Grows with 2 to the length of the text.
  const RegularExpression slow("(a*)*b");
  expect_message(ErrorKind::usage, "cannot be matched",
                 [&] { slow.is_whole(std::string(64, 'a') + "bc"); });
}

TEST(ModuleTargetsTest, NamesAreEndsOfPaths) {
  const ModuleTargets targets = ModuleTargets::from_names({"q_proj", "0.mlp.up_proj"});
  EXPECT_TRUE(targets.contains("model.layers.3.self_attn.q_proj"));
  EXPECT_TRUE(targets.contains("q_proj"));
  EXPECT_TRUE(targets.contains("model.layers.0.mlp.up_proj"));
  EXPECT_FALSE(targets.contains("model.layers.10.mlp.up_proj"));
  EXPECT_FALSE(targets.contains("model.layers.3.self_attn.xq_proj"));
  EXPECT_FALSE(targets.contains("proj"));
}

// peft.utils.other.get_pattern_key()
TEST(ModuleNumbersTest, TheFirstInTheOrderOfTheTextCounts) {
  const ModuleNumbers numbers({{"layers\\.0\\..*", 2}, {"down_proj", 3}, {"q|k", 4}});
  EXPECT_EQ(numbers.find("model.layers.0.mlp.down_proj"), 3.0);
  EXPECT_EQ(numbers.find("model.layers.0.mlp.up_proj"), 2.0);
  EXPECT_EQ(numbers.find("model.layers.1.mlp.up_proj"), std::nullopt);
  EXPECT_EQ(numbers.find("model.layers.10.mlp.up_proj"), std::nullopt);
  EXPECT_EQ(numbers.find("down_proj"), 3.0);
  EXPECT_EQ(numbers.find("updown_proj"), std::nullopt);
  EXPECT_EQ(numbers.find("a.k"), 4.0);
  expect_message(ErrorKind::usage, "\"(\" is not", [] { ModuleNumbers({{"(", 1}}); });
}

}  // namespace
}  // namespace jackscrew
