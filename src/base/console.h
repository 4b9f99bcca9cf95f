// Lines for whoever started the program. That they can be written is not sure: a terminal is
// closed, a reader goes (`| head`), a log lies on a full disk. No line is worth the work that it
// speaks of, so nothing here throws and nothing fails.
#pragma once

#include <cstdio>
#include <string_view>

namespace jackscrew {

// Writes all of `text` to the standard error stream, or as much as can be. The only way to it but
// for std::cerr, which does not throw either. Safe from any thread.
void write_stderr(std::string_view text) noexcept;

// Writes `text` to `out` at once. What cannot be written is dropped, and `out` is left without an
// error: of lines about work, not of data that somebody asked for.
void write_message(std::FILE* out, std::string_view text) noexcept;

// Opens /dev/null wherever descriptor 0, 1 or 2 is missing (`<&- >&- 2>&-`), before a file of the
// program gets that number and with it what is written to the console. Where stdout was missing,
// writing to it still fails: that output is lost must not pass for success.
void open_missing_descriptors() noexcept;

}  // namespace jackscrew
