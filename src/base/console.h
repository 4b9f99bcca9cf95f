// Messages to whoever started the program. Writing them may fail: a terminal is closed, a reader
// goes away (`| head`), a log lies on a full disk. No message is worth the work that it reports, so
// nothing here throws and nothing fails.
#pragma once

#include <atomic>
#include <cstdio>
#include <string_view>

namespace jackscrew {

// Writes `text` to stderr, or as much of it as can be written. The only way to stderr besides
// std::cerr, which does not throw either. Safe from any thread.
void write_stderr(std::string_view text) noexcept;

// Writes "jackscrew: warning: `line`" to stderr, always as a single line.
void warn(std::string_view line) noexcept;

// For a thread that must go on although nobody may be reading stderr: what it does not take within
// a second is dropped.
void offer_to_stderr(std::string_view text) noexcept;

// Writes `text` to `out` and flushes it. What cannot be written is dropped, and `out` is left
// without an error: for messages about work, not for data that somebody asked for.
// A reader may stop reading (a pager; mpirun, once it was asked to end), and a write then waits for
// it. With `stop`, it waits only until that is set; from then on, what a pipe or a terminal does
// not take at once is dropped. `out` must have nothing in its buffer then.
void write_message(std::FILE* out, std::string_view text,
                   const std::atomic<bool>* stop = nullptr) noexcept;

// Opens /dev/null wherever descriptor 0, 1 or 2 is missing (`<&- >&- 2>&-`), before a file of the
// program gets that number and receives what is written to the console. If stdout was missing,
// writing to it still fails: lost output must not pass for success.
void open_missing_descriptors() noexcept;

}  // namespace jackscrew
