// Entry of every test program. --isa=LEVEL limits the CPU code under test to that level, exactly as
// the recipe key `isa` does. A level above this machine's ends with 77, which CTest shows as
// skipped, and so do tests that were all skipped.
#include <gtest/gtest.h>

#include <string_view>

#include "base/error.h"
#include "tests/support/test_ops.h"
#include "tests/support/watchdog.h"

namespace jackscrew {
namespace {

constexpr int kSkipped = 77;  // SKIP_RETURN_CODE in tests/CMakeLists.txt

// The longest test takes 20 s on two cores; the limit is for busy machines and sanitizers, too.
constexpr std::chrono::minutes kLimitOfATest{10};

IsaLevel chosen_isa = IsaLevel::v3;

int run_tests(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  std::string_view requested = "auto";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    constexpr std::string_view kFlag = "--isa=";
    if (!argument.starts_with(kFlag)) {
      fail(ErrorKind::usage, "unknown argument {}; known: --isa=LEVEL and those of --help",
           argument);
    }
    requested = argument.substr(kFlag.size());
  }
  chosen_isa = choose_isa(requested);
  ::testing::UnitTest::GetInstance()->listeners().Append(new Watchdog(kLimitOfATest));
  const int result = RUN_ALL_TESTS();
  const ::testing::UnitTest& tests = *::testing::UnitTest::GetInstance();
  const int run = tests.test_to_run_count();
  return result == 0 && run > 0 && tests.skipped_test_count() == run ? kSkipped : result;
}

}  // namespace

IsaLevel test_isa() {
  return chosen_isa;
}

}  // namespace jackscrew

int main(int argc, char** argv) {
  try {
    return jackscrew::run_tests(argc, argv);
  } catch (const jackscrew::Error& error) {
    const bool skipped = error.kind() == jackscrew::ErrorKind::device;
    fmt::print(stderr, "{}{}\n", skipped ? "skipped: " : "", error.what());
    return skipped ? jackscrew::kSkipped : error.exit_code();
  }
}
