#include "data/csv.h"

#include <algorithm>
#include <utility>

namespace jackscrew {

CsvReader::CsvReader(std::string_view text, std::string where, size_t most_of_row)
    : text_(text), where_(std::move(where)), most_of_row_(most_of_row) {
  if (text_.starts_with(kByteOrderMark)) position_ = kByteOrderMark.size();
}

bool CsvReader::next(std::vector<std::string>& fields) {
  fields.clear();
  const auto at_line_end = [&] {
    return position_ == text_.size() || text_[position_] == '\n' || text_[position_] == '\r';
  };
  const auto pass_line_end = [&] {
    if (position_ < text_.size() && text_[position_] == '\r') ++position_;
    if (position_ < text_.size() && text_[position_] == '\n') ++position_;
    ++line_;
  };
  while (position_ < text_.size() && at_line_end()) pass_line_end();
  if (position_ == text_.size()) return false;
  row_line_ = line_;
  row_begin_ = position_;
  complaint_.reset();
  while (true) {
    fields.push_back(position_ < text_.size() && text_[position_] == '"' ? quoted_field()
                                                                         : plain_field());
    if (at_line_end()) break;
    if (text_[position_] != ',') {
      after_quote_ = text_[position_];
      complaint_ =
          Error(ErrorKind::data,
                fmt::format("{}:{}: text after the closing quote of a field", where_, line_),
                "write a quote inside a quoted field twice");
      position_ = std::min(text_.find_first_of("\r\n", position_), text_.size());
      break;
    }
    ++position_;
  }
  if (is_too_long(position_)) fields.clear();
  pass_line_end();
  return true;
}

std::string CsvReader::quoted_field() {
  std::string field;
  const int64_t begun = line_;
  for (++position_; position_ < text_.size(); ++position_) {
    const char c = text_[position_];
    if (c == '"') {
      ++position_;
      if (position_ == text_.size() || text_[position_] != '"') return field;
    }
    if (c == '\n') ++line_;
    if (!is_too_long(position_)) field += c;
  }
  throw Error(ErrorKind::data, fmt::format("{}:{}: a quote is not closed", where_, begun),
              "write a quote inside a quoted field twice");
}

std::string CsvReader::plain_field() {
  const size_t end = std::min(text_.find_first_of(",\r\n", position_), text_.size());
  std::string field;
  if (!is_too_long(end)) field = text_.substr(position_, end - position_);
  position_ = end;
  return field;
}

}  // namespace jackscrew
