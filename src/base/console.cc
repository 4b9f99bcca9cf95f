#include "base/console.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio_ext.h>
#include <unistd.h>

#include <cerrno>

namespace jackscrew {

void write_stderr(std::string_view text) noexcept {
  constexpr int kPatience =
      1000;  // milliseconds for a reader that is behind, on a stream that says so
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

void write_message(std::FILE* out, std::string_view text) noexcept {
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
