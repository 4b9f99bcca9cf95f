#include "base/choices.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace jackscrew {
namespace {

enum class Shade { light, medium, dark };

constexpr Choices kShades("light medium dark",
                          std::array{Shade::light, Shade::medium, Shade::dark});

TEST(Choices, AWordStandsForTheValueInItsPlace) {
  EXPECT_EQ(kShades["light"], Shade::light);
  EXPECT_EQ(kShades["medium"], Shade::medium);
  EXPECT_EQ(kShades["dark"], Shade::dark);
}

TEST(Choices, RefusesWhatIsNoneOfTheWords) {
  for (const char* word : {"", " ", "lig", "lights", "Light", "light medium", "dark "}) {
    SCOPED_TRACE(word);
    expect_message(ErrorKind::usage, "is not a choice", [&] { kShades[word]; });
  }
}

// The constructor asks this where constants are made: another number of words does not compile.
TEST(Choices, WordsAreCountedAndNoneIsEmpty) {
  EXPECT_EQ(count_words("light medium dark"), 3u);
  EXPECT_EQ(count_words("light"), 1u);
  for (const char* words : {"", " ", "light ", " light", "light  dark"}) {
    EXPECT_EQ(count_words(words), 0u) << words;
  }
}

}  // namespace
}  // namespace jackscrew
