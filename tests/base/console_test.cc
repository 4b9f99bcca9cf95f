// Lines that nobody can receive, and descriptors that nobody opened.
#include "base/console.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/support/terminal.h"

namespace jackscrew {
namespace {

// Whether `work` holds in a child process, whose descriptors it may close.
template <class Work>
bool holds_in_child(const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work() ? 0 : 1);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// That "said" is the first that came through a pipe, which is then closed.
void expect_said(const std::array<int, 2>& pipe) {
  std::string said(4, ' ');
  EXPECT_EQ(::read(pipe[0], said.data(), said.size()), 4);
  EXPECT_EQ(said, "said");
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(Console, MissingDescriptorsAreNotGivenToFiles) {
  EXPECT_TRUE(holds_in_child([] {
    for (const int descriptor : {0, 1, 2}) ::close(descriptor);
    open_missing_descriptors();
    return ::open("/dev/zero", O_RDONLY) > 2;
  }));
  for (const int missing : {0, 1, 2}) {
    EXPECT_TRUE(holds_in_child([missing] {
      ::close(missing);
      open_missing_descriptors();
      return ::open("/dev/zero", O_RDONLY) > 2;
    })) << missing;
  }
}

TEST(Console, WhatStoodInForAMissingStreamIsEmptyOrRefuses) {
  EXPECT_TRUE(holds_in_child([] {
    for (const int descriptor : {0, 1, 2}) ::close(descriptor);
    open_missing_descriptors();
    char byte = 0;
    return ::read(0, &byte, 1) == 0 && ::write(1, &byte, 1) < 0 && ::write(2, &byte, 1) == 1;
  }));
}

TEST(Console, DescriptorsThatAreThereStay) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  EXPECT_TRUE(holds_in_child([&] {
    ::dup2(pipe[1], STDERR_FILENO);
    open_missing_descriptors();
    write_stderr("said");
    return true;
  }));
  expect_said(pipe);
}

TEST(Console, AnErrorStreamThatCannotBeWrittenIsNoMatter) {
  for (const char* path : {"/dev/full", "/dev/zero"}) {
    const int mode = std::string(path) == "/dev/full" ? O_WRONLY : O_RDONLY;
    EXPECT_TRUE(holds_in_child([&] {
      ::dup2(::open(path, mode), STDERR_FILENO);
      write_stderr("lost");
      return true;
    })) << path;
  }
  EXPECT_TRUE(holds_in_child([] {
    std::signal(SIGPIPE, SIG_IGN);
    std::array<int, 2> pipe{};
    if (::pipe(pipe.data()) != 0) return false;
    ::dup2(pipe[1], STDERR_FILENO);
    ::close(pipe[0]);
    write_stderr("lost");
    return true;
  }));
}

TEST(Console, ALongTextIsWrittenWholeToAStreamThatDoesNotWait) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_NONBLOCK), 0);
  const std::string text(1 << 20, 'x');
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(pipe[0]);
    ::dup2(pipe[1], STDERR_FILENO);
    write_stderr(text);
    ::_exit(0);
  }
  ::close(pipe[1]);
  ::fcntl(pipe[0], F_SETFL, 0);
  std::array<char, 4096> part{};
  size_t got = 0;
  for (ssize_t size = 0; (size = ::read(pipe[0], part.data(), part.size())) > 0;) {
    got += static_cast<size_t>(size);
  }
  EXPECT_EQ(got, text.size());
  ::close(pipe[0]);
  ::waitpid(child, nullptr, 0);
}

TEST(Console, AMessageThatIsLostLeavesItsStreamWithoutError) {
  std::FILE* full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  write_message(full, "lost\n");
  EXPECT_EQ(std::ferror(full), 0);
  EXPECT_EQ(std::fflush(full), 0);
  EXPECT_EQ(std::fclose(full), 0);
}

// A pipe, and a terminal as shells have them, whose other end nobody reads: {reader, writer}.
std::array<int, 2> unread_pipe() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  return ends;
}
std::array<int, 2> unread_terminal() {
  const int reader = open_terminal();
  return {reader, ::open(::ptsname(reader), O_RDWR | O_NOCTTY)};
}

// As a pager's, and that of mpirun once it was asked to end.
TEST(Console, AReaderThatStoppedReadingHoldsNobodyAfterAStop) {
  for (const auto& [reader, descriptor] : {unread_pipe(), unread_terminal()}) {
    std::FILE* out = ::fdopen(descriptor, "w");
    ASSERT_NE(out, nullptr);
    std::atomic<bool> stop{false};
    std::atomic<bool> is_done{false};
    std::string text;  // more than either holds
    for (int i = 0; i < 20'000; ++i) text += "a line\n";
    std::thread writer([&] {
      write_message(out, text, &stop);
      write_message(out, text, &stop);
      is_done = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_FALSE(is_done);  // it waits for its reader
    stop = true;
    writer.join();
    EXPECT_EQ(std::ferror(out), 0);
    // What is taken at once is written after a stop, too.
    ::fcntl(reader, F_SETFL, O_NONBLOCK);
    std::string got(1 << 16, ' ');
    while (::read(reader, got.data(), got.size()) > 0) {
    }
    write_message(out, "the end", &stop);
    EXPECT_EQ(::read(reader, got.data(), got.size()), 7);
    EXPECT_EQ(got.substr(0, 7), "the end");
    std::fclose(out);
    ::close(reader);
  }
}

TEST(Console, AReaderThatIsBehindMissesNothing) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  std::FILE* out = ::fdopen(pipe[1], "w");
  const std::atomic<bool> stop{false};
  const std::string text(200'000, 'x');
  std::thread writer([&] {
    write_message(out, text, &stop);
    std::fclose(out);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(250));  // longer than one look at `stop`
  std::array<char, 4096> part{};
  size_t got = 0;
  for (ssize_t size = 0; (size = ::read(pipe[0], part.data(), part.size())) > 0;) {
    got += static_cast<size_t>(size);
  }
  writer.join();
  EXPECT_EQ(got, text.size());
  ::close(pipe[0]);
}

TEST(Console, WhatIsOfferedToStderrWaitsForNoReader) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  EXPECT_TRUE(holds_in_child([&] {
    ::dup2(pipe[1], STDERR_FILENO);
    offer_to_stderr("said");
    offer_to_stderr(std::string(1 << 20, 'x'));
    return true;
  }));
  expect_said(pipe);
}

}  // namespace
}  // namespace jackscrew
