// Reads comma-separated values (RFC 4180): a quoted field may hold commas, line breaks and doubled
// quotes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace jackscrew {

// What some editors put before a text in UTF-8; it is no part of it.
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

class CsvReader {
 public:
  // `text` must outlive the reader; `where` begins error messages. A byte-order mark is skipped. A
  // row of more than `most_of_row` bytes is passed over: it has no fields.
  CsvReader(std::string_view text, std::string where, size_t most_of_row);

  // Reads the fields of the next non-empty row; returns false at the end. Throws Error(data) naming
  // the line for a quote that is not closed: where the next row begins is unknown then.
  bool next(std::vector<std::string>& fields);
  // What is wrong with the last row, whose fields are not to be used then: a closing quote is
  // followed by anything but a comma or the line's end.
  const std::optional<Error>& complaint() const { return complaint_; }
  // What follows the quote then.
  char after_quote() const { return after_quote_; }
  // The line, counted from 1, in which the last row began; and the bytes read so far.
  int64_t line() const { return row_line_; }
  size_t position() const { return position_; }

 private:
  std::string quoted_field();
  std::string plain_field();
  // Whether the row, which has reached byte `at` of the text, is too long.
  bool is_too_long(size_t at) const { return at - row_begin_ > most_of_row_; }

  std::string_view text_;
  std::string where_;
  size_t most_of_row_;
  size_t position_ = 0;
  size_t row_begin_ = 0;
  int64_t line_ = 1;
  int64_t row_line_ = 0;
  std::optional<Error> complaint_;
  char after_quote_ = 0;
};

}  // namespace jackscrew
