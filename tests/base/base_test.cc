#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <vector>

#include "base/checked.h"
#include "base/directory.h"
#include "base/file.h"
#include "base/half.h"
#include "base/philox.h"
#include "base/temporary_place.h"
#include "base/text.h"
#include "tests/support/environment.h"
#include "tests/support/errors.h"
#include "tests/support/resource_limit.h"
#include "tests/support/sanitizer.h"

namespace jackscrew {
namespace {

TEST(Checked, RefusesOverflow) {
  EXPECT_EQ(checked_mul(1 << 20, 1 << 20), int64_t{1} << 40);
  EXPECT_THROW(checked_mul(int64_t{1} << 40, int64_t{1} << 40), Error);
  EXPECT_THROW(checked_add(std::numeric_limits<int64_t>::max(), 1), Error);
  EXPECT_THROW(div_exact(10, 3), Error);
  EXPECT_EQ(round_up(65, 64), 128);
  EXPECT_THROW(narrow<int32_t>(int64_t{1} << 31), Error);
  EXPECT_THROW(narrow<uint32_t>(-1), Error);
}

// The known-answer tests that the authors of Philox publish with Random123 (philox4x32, 10 rounds).
TEST(Philox, KnownAnswers) {
  const Philox4 zeros = philox4x32(0, 0, 0, 0, 0, 0);
  EXPECT_EQ(zeros.x[0], 0x6627e8d5u);
  EXPECT_EQ(zeros.x[1], 0xe169c58du);
  EXPECT_EQ(zeros.x[2], 0xbc57ac4cu);
  EXPECT_EQ(zeros.x[3], 0x9b00dbd8u);
  const uint32_t f = 0xffffffffu;
  const Philox4 ones = philox4x32(f, f, f, f, f, f);
  EXPECT_EQ(ones.x[0], 0x408f276du);
  EXPECT_EQ(ones.x[1], 0x41c83b0eu);
  EXPECT_EQ(ones.x[2], 0xa20bc7c6u);
  EXPECT_EQ(ones.x[3], 0x6d5451fdu);
}

TEST(Half, EveryF16RoundTrips) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const f16 value{static_cast<uint16_t>(bits)};
    const float wide = to_float(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_float(to_f16(wide))));
      continue;
    }
    EXPECT_EQ(to_f16(wide).bits, bits);
    const int exponent = static_cast<int>((bits >> 10) & 31);
    const double mantissa = bits & 1023;
    double expected =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024.0, exponent - 25);
    if (exponent == 31) expected = std::numeric_limits<double>::infinity();
    EXPECT_EQ(static_cast<double>(wide), (bits & 0x8000) != 0 ? -expected : expected);
  }
}

TEST(Half, RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.00390625f).bits, 0x3f80);  // halfway between 1 and 1.0078125: even is 1
  EXPECT_EQ(to_bf16(1.01171875f).bits, 0x3f82);  // halfway: even is above
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7c00);      // halfway past the largest: infinity
  EXPECT_EQ(to_f16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(to_f16(std::ldexp(1.0f, -25)).bits, 0);  // halfway to the smallest: even is zero
  EXPECT_EQ(to_f16(std::ldexp(1.5f, -25)).bits, 1);
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::nanf("")))));
}

TEST(Text, NearestName) {
  const std::vector<std::string> names = {"learning_rate", "max_steps", "method"};
  EXPECT_EQ(nearest_name("learning_rat", names), "learning_rate");
  EXPECT_EQ(nearest_name("metod", names), "method");
  EXPECT_EQ(nearest_name("zzz", names), std::nullopt);
  EXPECT_EQ(nearest_name("METHOD", names), "method");
}

TEST(Text, Sizes) {
  EXPECT_EQ(lower_case("Train.JSONL \xC3\x84"), "train.jsonl \xC3\x84");
  EXPECT_EQ(parse_bytes("16GiB"), int64_t{16} << 30);
  EXPECT_EQ(parse_bytes("1.5 MB"), 1500000);
  EXPECT_EQ(parse_bytes("4096B"), 4096);
  EXPECT_EQ(parse_bytes("12 parsecs"), std::nullopt);
  for (const char* bare : {"16", "17179869184", "1.5", "0"}) {
    EXPECT_EQ(parse_bytes(bare), std::nullopt) << bare;
  }
  EXPECT_EQ(human_bytes(int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1048524), "1023.9 KiB");
  EXPECT_EQ(human_bytes(1048525), "1.0 MiB");
  EXPECT_EQ(human_bytes((int64_t{1} << 30) - 52429), "1023.9 MiB");
  EXPECT_EQ(human_bytes((int64_t{1} << 30) - 52428), "1.00 GiB");
  EXPECT_EQ(human_bytes(5242880, 5242881), "5.0 MiB (5242880 B)");
  EXPECT_EQ(human_bytes(5242880, 5242880), "5.0 MiB");
  EXPECT_EQ(human_bytes(5242880, 6242880), "5.0 MiB");
  EXPECT_EQ(human_duration(4321), "1h12m");
}

TEST(Text, RepositoriesOfAHub) {
  for (const char* name : {"org/name", "HuggingFaceTB/SmolLM2-135M", "a_b/c.d-1"}) {
    EXPECT_TRUE(is_repository_name(name)) << name;
  }
  for (const char* path : {"name", "/org/name", "./name", "../name", "a/b/c", "a/", "a/b.gguf",
                           "a/b.jsonl", "a/b c", ""}) {
    EXPECT_FALSE(is_repository_name(path)) << path;
  }
}

TEST(Text, OneLineSpellsControlCharactersOut) {
  EXPECT_EQ(one_line("a\nb\x1b[2J\x7f \xC3\xA9"), "a\\nb\\u001b[2J\\u007f \xC3\xA9");
}

// What stands between U+202E and U+202C is shown from right to left: "exe.txt" reads "txt.exe".
TEST(Text, CharactersThatNobodySeesAreShown) {
  for (const auto& [text, code] :
       std::initializer_list<std::pair<const char*, const char*>>{{"\u061C", "061c"},
                                                                  {"\u0080", "0080"},
                                                                  {"\u009B", "009b"},
                                                                  {"\u200E", "200e"},
                                                                  {"\u200F", "200f"},
                                                                  {"\u2028", "2028"},
                                                                  {"\u2029", "2029"},
                                                                  {"\u202A", "202a"},
                                                                  {"\u202C", "202c"},
                                                                  {"\u202E", "202e"},
                                                                  {"\u2066", "2066"},
                                                                  {"\u2069", "2069"}}) {
    EXPECT_EQ(one_line(std::string("a") + text + "b"), std::string("a\\u") + code + "b");
    EXPECT_EQ(without_controls(std::string("a") + text + "b"), "a\uFFFDb") << code;
  }
  EXPECT_EQ(without_controls("a\tb\nc\x1b"), "a\tb\nc\uFFFD");
  // Neighbours of those, joined emoji, and what is no UTF-8 stay as they are.
  for (const std::string text :
       {"\u00A0\u00E9\u061B\u061D\u200B\u200D\u2010\u202F\u2065\u206A", "\xE2\x80", "\xC2"}) {
    EXPECT_EQ(one_line(text), text);
    EXPECT_EQ(without_controls(text), text);
  }
}

TEST(Text, Counts) {
  EXPECT_EQ(human_count(812), "812");
  EXPECT_EQ(human_count(35232), "35.2k");
  EXPECT_EQ(human_count(999949), "999.9k");
  EXPECT_EQ(human_count(999950), "1.0M");
  EXPECT_EQ(human_count(6738415616), "6738.4M");
  EXPECT_EQ(counted(1, "token"), "1 token");
  EXPECT_EQ(counted(0, "token"), "0 tokens");
}

class FileTest : public ::testing::Test {
 protected:
  FileTest() : directory_(fs::temp_directory_path() / "jackscrew_file_test") {
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  ~FileTest() override { fs::remove_all(directory_); }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : fs::directory_iterator(directory_)) {
      out.push_back(entry.path().filename().string());
    }
    std::sort(out.begin(), out.end());
    return out;
  }
  fs::path directory_;
};

TEST_F(FileTest, WhatCannotBeRemovedIsAnErrorOfOurs) {
  fs::create_directories(directory_ / "a/b");
  EXPECT_EQ(entries_of(directory_ / "a").size(), 1u);
  remove_tree(directory_ / "a");
  remove_tree(directory_ / "a");
  EXPECT_TRUE(entries_of(directory_ / "a").empty());
  // Nobody may, root included.
  expect_message(ErrorKind::generic,
                 "cannot remove /proc/version: ", [] { remove_tree("/proc/version"); });
  expect_message(ErrorKind::generic,
                 "cannot list /proc/version: ", [] { entries_of("/proc/version"); });
}

TEST_F(FileTest, MapsAndNamesWhatIsMissing) {
  write_text_atomic(directory_ / "a", "hello");
  EXPECT_EQ(read_text(directory_ / "a"), "hello");
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
  expect_message(ErrorKind::model, "b: No such file",
                 [&] { MappedFile missing(directory_ / "b"); });
}

// A file that is gone is one that nobody need look for again; of others the next look may tell.
TEST_F(FileTest, WhatIsThereAndCannotBeOpenedIsUnreadable) {
  const fs::path loop = directory_ / "loop";
  fs::create_symlink(loop, loop);
  EXPECT_THROW(MappedFile{loop}, Unreadable);
  try {
    const MappedFile missing(directory_ / "b");
    ADD_FAILURE() << "it is there";
  } catch (const Unreadable& error) {
    ADD_FAILURE() << error.what();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::model);
  }
}

TEST_F(FileTest, DirectoryAppearsWholeOrNotAtAll) {
  {
    AtomicDirectory abandoned(directory_ / "out");
    write_text_atomic(abandoned.path() / "x", "1");
  }
  EXPECT_TRUE(names().empty());
  for (const char* text : {"1", "2"}) {
    AtomicDirectory out(directory_ / "out");
    write_text_atomic(out.path() / "x", text);
    out.commit();
    EXPECT_EQ(read_text(directory_ / "out" / "x"), text);
  }
  EXPECT_EQ(names(), std::vector<std::string>{"out"});
}

// The system refuses a call for the rest of this process.
void refuse(uint32_t call, uint32_t reason) {
  sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | reason),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{4, filter};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

// As on a file system that cannot exchange two names.
void refuse_exchange() {
  refuse(__NR_renameat2, EINVAL);
  ASSERT_NE(::renameat2(AT_FDCWD, ".", AT_FDCWD, ".", RENAME_EXCHANGE), 0);
  ASSERT_EQ(errno, EINVAL);
}

TEST_F(FileTest, ATemporaryThatCannotBeEmptiedIsRemoved) {
  const auto write = [&] {
    refuse(__NR_ftruncate, EIO);
    expect_message(ErrorKind::generic, "cannot empty", [&] { AtomicFile(directory_ / "out"); });
    std::_Exit(HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(write(), ::testing::ExitedWithCode(0), "");
  EXPECT_EQ(names(), std::vector<std::string>());
}

TEST_F(FileTest, DirectoryAppearsWhereNamesAreNotExchanged) {
  const auto write = [&] {
    refuse_exchange();
    for (const char* text : {"1", "2"}) {
      AtomicDirectory out(directory_ / "out");
      write_text_atomic(out.path() / "x", text);
      out.commit();
    }
    std::_Exit(HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(write(), ::testing::ExitedWithCode(0), "");
  EXPECT_EQ(names(), std::vector<std::string>{"out"});
  EXPECT_EQ(read_text(directory_ / "out" / "x"), "2");
}

// A process was killed when what stood there had been moved away.
TEST_F(FileTest, WhatWasMovedAwayGoesWithTheNext) {
  for (int with_another = 0; with_another < 2; ++with_another) {  // at "out", since the first
    fs::create_directories(directory_ / "out.jackscrew-part.old" / "below");
    AtomicDirectory(directory_ / "out").commit();
    EXPECT_EQ(names(), std::vector<std::string>{"out"});
  }
}

TEST_F(FileTest, WhatIsReplacedCanBeRemovedByOthers) {
  fs::create_directories(directory_ / "out");
  write_text_atomic(directory_ / "out/x", "1");
  AtomicDirectory out(directory_ / "out");
  std::string replaced;
  out.commit([&](const fs::path& before) {
    replaced = read_text(before / "x");
    fs::remove_all(before);
  });
  EXPECT_EQ(replaced, "1");
  EXPECT_TRUE(fs::is_empty(directory_ / "out"));
}

// As a run holds its output_dir, which is empty until it has a log.
TEST_F(FileTest, WhatAnotherHoldsIsNotReplaced) {
  {
    AtomicDirectory out(directory_ / "out");
    write_text_atomic(out.path() / "x", "1");
    fs::create_directories(directory_ / "out");
    const DirectoryLock held(directory_ / "out");
    expect_message(ErrorKind::generic, "another run is writing to " + (directory_ / "out").string(),
                   [&] { out.commit(); });
    EXPECT_TRUE(held.is_at(directory_ / "out"));
    EXPECT_TRUE(fs::is_empty(directory_ / "out"));
  }
  EXPECT_EQ(names(), std::vector<std::string>{"out"});
}

// Somebody moved the directory in which it is made, and others made one of that name.
TEST_F(FileTest, OnlyWhatWasMadeIsPutInPlace) {
  const fs::path run = directory_ / "run", moved = directory_ / "moved";
  fs::create_directories(run);
  {
    AtomicDirectory out(run / "out");
    write_text_atomic(out.path() / "x", "1");
    fs::rename(run, moved);
    expect_message(ErrorKind::generic, "was moved or removed", [&] { out.commit(); });
    fs::create_directories(out.path());
    write_text_atomic(out.path() / "y", "2");
    expect_message(ErrorKind::generic, "was moved or removed", [&] { out.commit(); });
  }
  EXPECT_FALSE(fs::exists(run / "out"));
  EXPECT_EQ(read_text(run / "out.jackscrew-part/y"), "2");
  EXPECT_EQ(read_text(moved / "out.jackscrew-part/x"), "1");
}

// As whoever begins the same output where the temporary is gone.
TEST_F(FileTest, OnlyTheFileThatWasMadeIsPutInPlace) {
  const fs::path run = directory_ / "run", moved = directory_ / "moved";
  fs::create_directories(run);
  const auto refuse = [&](AtomicFile& file) {
    expect_message(ErrorKind::generic, "was moved or removed", [&] { file.require_in_place(); });
    expect_message(ErrorKind::generic, "was moved or removed", [&] { file.commit(); });
    EXPECT_FALSE(fs::exists(run / "out.gguf"));
    EXPECT_FALSE(fs::exists(moved / "out.gguf"));
  };
  AtomicFile first(run / "out.gguf");
  FileWriter(first.path()).write("1");
  fs::remove(first.path());
  refuse(first);
  AtomicFile second(run / "out.gguf");
  FileWriter(second.path()).write("2");
  refuse(first);
  fs::rename(run, moved);
  refuse(second);
  fs::create_directories(run);
  AtomicFile third(run / "out.gguf");
  FileWriter(third.path()).write("3");
  refuse(second);
  EXPECT_EQ(read_text(moved / "out.gguf.jackscrew-part"), "2");
  third.commit();
  EXPECT_EQ(read_text(run / "out.gguf"), "3");
}

TEST_F(FileTest, NoLinkIsFollowed) {
  write_text_atomic(directory_ / "victim", "mine");
  fs::create_symlink("victim", directory_ / "page.html.jackscrew-part");
  expect_message(ErrorKind::generic, "cannot create ",
                 [&] { write_text_atomic(directory_ / "page.html", "1"); });
  EXPECT_EQ(read_text(directory_ / "victim"), "mine");
}

TEST_F(FileTest, WhatOthersHaveBesideItStays) {
  for (const char* name : {"out.part", "out.old"}) {
    fs::create_directories(directory_ / name);
    write_text_atomic(directory_ / name / "notes", "mine");
  }
  write_text_atomic(directory_ / "out.gguf.part", "mine");
  for (int i = 0; i < 2; ++i) {
    AtomicDirectory directory(directory_ / "out");
    AtomicFile file(directory_ / "out.gguf");
    write_text_atomic(directory.path() / "x", "1");
    directory.commit();
    file.commit();
  }
  EXPECT_EQ(names(),
            (std::vector<std::string>{"out", "out.gguf", "out.gguf.part", "out.old", "out.part"}));
  for (const char* name : {"out.part/notes", "out.old/notes", "out.gguf.part"}) {
    EXPECT_EQ(read_text(directory_ / name), "mine");
  }
}

TEST_F(FileTest, WhatAKilledProcessLeftIsReplaced) {
  fs::create_directories(directory_ / "out.jackscrew-part" / "below");
  write_text_atomic(directory_ / "out.gguf.jackscrew-part", "half");
  {
    AtomicDirectory directory(directory_ / "out");
    EXPECT_TRUE(fs::is_empty(directory.path()));
    AtomicFile file(directory_ / "out.gguf");
    EXPECT_TRUE(fs::is_empty(file.path()));
    write_text_atomic(directory.path() / "x", "1");
    FileWriter(file.path()).close();
    directory.commit();
    file.commit();
  }
  EXPECT_EQ(names(), (std::vector<std::string>{"out", "out.gguf"}));
  EXPECT_TRUE(fs::is_empty(directory_ / "out.gguf"));
}

// `export output=m`, killed, and then `export output=m format=gguf`; and the other way round.
TEST_F(FileTest, WhatAKilledProcessLeftOfTheOtherKindIsReplaced) {
  fs::create_directories(directory_ / "file.jackscrew-part" / "below");
  write_text_atomic(directory_ / "directory.jackscrew-part", "half");
  {
    const DirectoryLock held(directory_ / "file.jackscrew-part");
    expect_message(ErrorKind::generic,
                   "another run is writing to " + (directory_ / "file").string(),
                   [&] { AtomicFile file(directory_ / "file"); });
    EXPECT_TRUE(fs::exists(directory_ / "file.jackscrew-part" / "below"));
  }
  AtomicFile file(directory_ / "file");
  AtomicDirectory directory(directory_ / "directory");
  expect_message(ErrorKind::generic, "another run is writing to " + (directory_ / "file").string(),
                 [&] { AtomicDirectory other(directory_ / "file"); });
  file.commit();
  directory.commit();
  EXPECT_EQ(names(), (std::vector<std::string>{"directory", "file"}));
  EXPECT_TRUE(fs::is_regular_file(directory_ / "file"));
  EXPECT_TRUE(fs::is_directory(directory_ / "directory"));
}

TEST_F(FileTest, LargeTemporariesHaveAPlaceWhateverIsNamed) {
  write_text_atomic(directory_ / "file", "1");
  for (const char* there_is_none : {"missing", "file", "file/below"}) {
    const EnvironmentVariable named("TMPDIR", directory_ / there_is_none);
    const fs::path place = large_temporary_directory();
    EXPECT_TRUE(place == "/var/tmp" || place == "/tmp") << place;
  }
  const EnvironmentVariable named("TMPDIR", directory_);
  EXPECT_EQ(large_temporary_directory(), directory_);
}

TEST_F(FileTest, OnlyOneWritesToAnOutput) {
  const AtomicDirectory directory(directory_ / "out");
  const AtomicFile file(directory_ / "out.gguf");
  write_text_atomic(directory.path() / "x", "1");
  expect_message(ErrorKind::generic, "another run is writing to",
                 [&] { AtomicDirectory again(directory_ / "out"); });
  expect_message(ErrorKind::generic, "another run is writing to",
                 [&] { AtomicFile again(directory_ / "out.gguf"); });
  expect_message(ErrorKind::generic, "another run is writing to",
                 [&] { write_text_atomic(directory_ / "out.gguf", "1"); });
  EXPECT_EQ(read_text(directory.path() / "x"), "1");
  EXPECT_TRUE(fs::exists(file.path()));
}

TEST_F(FileTest, TheLimitOfAFileIsKnown) {
  {
    const ResourceLimit limited(RLIMIT_FSIZE, 4096);
    EXPECT_EQ(file_size_limit(), 4096);
  }
  const ResourceLimit unlimited(RLIMIT_FSIZE, RLIM_INFINITY);
  EXPECT_EQ(file_size_limit(), std::nullopt);
}

TEST_F(FileTest, TooManyOpenFilesAreALimitThatCanBeRaised) {
  write_text_atomic(directory_ / "a", "1");
  const ResourceLimit none(RLIMIT_NOFILE, 0);
  expect_error(ErrorKind::model,
               "a: Too many open files | raise the limit of open files (ulimit -n)",
               [&] { MappedFile file(directory_ / "a"); });
}

// It has its final name already: only its directory is opened after that.
TEST_F(FileTest, WhatTheDiskDoesNotConfirmIsWritten) {
  if (kSanitized) GTEST_SKIP() << "UndefinedBehaviorSanitizer needs a descriptor, too";
  AtomicFile file(directory_ / "a");
  FileWriter(file.path()).write("1");
  testing::internal::CaptureStderr();
  {
    const ResourceLimit none(RLIMIT_NOFILE, 0);
    file.commit();
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(said.starts_with("jackscrew: warning: " + (directory_ / "a").string() +
                               " is written, but the disk does not confirm that it keeps it: "))
      << said;
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
}

TEST_F(FileTest, FullDiskIsAnError) {
  FileWriter writer("/dev/full");
  expect_message(ErrorKind::generic, "/dev/full", [&] {
    writer.write(std::string(1 << 20, 'x'));
    writer.close();
  });
}

}  // namespace
}  // namespace jackscrew
