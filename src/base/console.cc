#include "base/console.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio_ext.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace jackscrew {

namespace {

// Milliseconds for a reader that is behind.
constexpr int kPatience = 1000;
// Bytes that a pipe or a terminal takes without waiting once poll() says that it takes any: no more
// than PIPE_BUF, and less than a buffer of a terminal in Linux.
constexpr size_t kPiece = 512;

bool takes_more(int descriptor, int milliseconds) {
  pollfd stream = {descriptor, POLLOUT, 0};
  return ::poll(&stream, 1, milliseconds) != 0;  // after a failure the write says what is wrong
}

// Waits until `descriptor` takes more, which is then true, or until `stop`.
bool takes_more_before(const std::atomic<bool>& stop, int descriptor) {
  constexpr int kLook = 100;  // milliseconds from one look at `stop` to the next
  while (!takes_more(descriptor, stop ? 0 : kLook)) {
    if (stop) return false;
  }
  return true;
}

void write_and_flush(std::FILE* out, std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), out) == text.size();
  if (written && std::fflush(out) == 0) return;
  ::__fpurge(out);  // or the next flush would fail over this text again
  std::clearerr(out);
}

}  // namespace

void write_stderr(std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (written < 0 && errno == EAGAIN) {
      if (!takes_more(STDERR_FILENO, kPatience)) return;
    } else if (written == 0 || errno != EINTR) {
      return;
    }
  }
}

void offer_to_stderr(std::string_view text) noexcept {
  while (!text.empty() && takes_more(STDERR_FILENO, kPatience)) {
    write_stderr(text.substr(0, kPiece));
    text.remove_prefix(std::min(kPiece, text.size()));
  }
}

void write_message(std::FILE* out, std::string_view text, const std::atomic<bool>* stop) noexcept {
  const int descriptor = ::fileno(out);
  if (stop == nullptr || descriptor < 0) return write_and_flush(out, text);
  while (!text.empty() && takes_more_before(*stop, descriptor)) {
    write_and_flush(out, text.substr(0, kPiece));
    text.remove_prefix(std::min(kPiece, text.size()));
  }
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
