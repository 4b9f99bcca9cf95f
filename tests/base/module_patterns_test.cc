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

// As Python 3.11 takes or refuses them.
TEST(RegularExpressionTest, IsReadAsPythonReadsIt) {
  const std::string path = "model.layers.12.self_attn.q_proj";
  for (const char* same :
       {R"((?i).*\.Q_proj)", R"(.*\.(?P<a>q|k)_proj\Z)", R"(.*[.][]q]_proj)", R"(.*(?<!k)_proj)",
        R"(.*\.\x71_proj$)", R"((?:.*?\.)?layers\.\d{1,}\..*+)", R"(^model\.(?i:LAYERS)\.1[^0].*)",
        // Unsloth writes such.
        R"((?:.*?(?:language|text).*?(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense).*?)"
        R"((?:k_proj|v_proj|q_proj|o_proj|out_proj|gate_proj|up_proj|down_proj).*?)|)"
        R"((?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense))"
        R"(\.(?:(?:k_proj|v_proj|q_proj|o_proj|out_proj|gate_proj|up_proj|down_proj))))"}) {
    EXPECT_TRUE(RegularExpression(same).is_whole(path)) << same;
  }
  for (const char* other :
       {R"(q{,2}_proj)", R"([[:lower:]]_proj)", R"((?<a>q)_proj)", R"(q_proj\z)", R"(\Qq_proj\E)",
        R"(q_\Hroj)", R"(q(?i)_PROJ)", R"((?|q|k)_proj)", R"((q)(?1))", R"((*SKIP)q|k)",
        R"(q\h*_proj)", R"(\x{71}_proj)", R"((?<=ab|c)q)", R"((?'a'q))"}) {
    expect_message(ErrorKind::usage, "Python's re reads otherwise",
                   [&] { RegularExpression expression(other); });
  }
  expect_message(ErrorKind::usage, R"("(?<a>q)_", at character 5)",
                 [] { RegularExpression(R"(.*\.(?<a>q)_proj)"); });
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
  // PEFT puts something before a pattern: a group, and flags are not at the beginning any more.
  EXPECT_EQ(ModuleNumbers({{R"((\d)\.\1q)", 5}}).find("1.7.7q"), std::nullopt);
  EXPECT_EQ(ModuleNumbers({{R"((\d)\.\1q)", 5}}).find("a.7.a.q"), 5.0);
  expect_message(ErrorKind::usage, "otherwise, or not at all: \"(?i)Q_pr", [] {
    ModuleNumbers({{"(?i)Q_proj", 1}});
  });
}

}  // namespace
}  // namespace jackscrew
