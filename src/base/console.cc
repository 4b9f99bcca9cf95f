#include "base/console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <stdio_ext.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>

#include "base/clock.h"
#include "base/text.h"

namespace jackscrew {

namespace {

constexpr int kPatience = 1000;  // milliseconds for a reader that is behind
constexpr int kLook = 20;        // milliseconds until the next try, and look at a stop

// Opens a pipe or a terminal once more, so that writing there returns where its reader does not
// read: the flag for that is of the description, and other processes may share this one. -1 where
// that cannot be, as without /proc.
int open_without_waiting(int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return -1;
  if (!S_ISFIFO(status.st_mode) && !S_ISCHR(status.st_mode)) return -1;
  std::array<char, 32> path{};
  std::snprintf(path.data(), path.size(), "/proc/self/fd/%d", descriptor);
  return ::open(path.data(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

// Writes to such a descriptor, closes it, and drops what its reader has not taken when `is_over()`
// is true.
template <class IsOver>
void write_until(const IsOver& is_over, int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (written < 0 && errno == EAGAIN) {
      if (is_over()) break;
      ::poll(nullptr, 0, kLook);  // a terminal may call itself ready and take nothing
    } else if (written == 0 || errno != EINTR) {
      break;
    }
  }
  ::close(descriptor);
}

}  // namespace

void write_stderr(std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (written < 0 && errno == EAGAIN) {
      pollfd stream = {STDERR_FILENO, POLLOUT, 0};
      if (::poll(&stream, 1, kPatience) <= 0) return;
    } else if (written == 0 || errno != EINTR) {
      return;
    }
  }
}

void warn(std::string_view line) noexcept {
  try {
    write_stderr(fmt::format("jackscrew: warning: {}\n", one_line(line)));
  } catch (const std::exception&) {  // no memory
    write_stderr("jackscrew: warning: ");
    write_stderr(line);
    write_stderr("\n");
  }
}

void offer_to_stderr(std::string_view text) noexcept {
  const int own = open_without_waiting(STDERR_FILENO);
  if (own < 0) return write_stderr(text);
  const Stopwatch watch;
  write_until([&] { return watch.seconds() * 1000 > kPatience; }, own, text);
}

void write_message(std::FILE* out, std::string_view text, const std::atomic<bool>* stop) noexcept {
  const int own = stop == nullptr ? -1 : open_without_waiting(::fileno(out));
  if (own >= 0) return write_until([&] { return stop->load(); }, own, text);
  const bool written = std::fwrite(text.data(), 1, text.size(), out) == text.size();
  if (written && std::fflush(out) == 0) return;
  ::__fpurge(out);  // or the next flush would fail over this text again
  std::clearerr(out);
}

void open_missing_descriptors() noexcept {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest number that is free is this one.
    const int mode = descriptor == STDERR_FILENO ? O_RDWR : O_RDONLY;
    if (::open("/dev/null", mode) < 0) ::open("/", O_RDONLY | O_DIRECTORY);
  }
}

}  // namespace jackscrew
