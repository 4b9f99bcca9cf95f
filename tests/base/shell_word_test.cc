#include "base/shell_word.h"

#include <gtest/gtest.h>

namespace jackscrew {
namespace {

TEST(ShellWord, IsQuotedWhereAShellWouldReadItOtherwise) {
  for (const char* plain : {"a", "runs/first-1.gguf", "C:x,y=@%+_", "größe"}) {
    EXPECT_EQ(shell_word(plain), plain);
  }
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("f g"), "'f g'");
  EXPECT_EQ(shell_word("$x"), "'$x'");
  EXPECT_EQ(shell_word("it's"), R"('it'\''s')");
  EXPECT_EQ(shell_word("a\nb'\\c\x01"), R"($'a\nb\'\\c\x01')");
}

}  // namespace
}  // namespace jackscrew
