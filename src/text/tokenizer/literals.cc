#include "text/tokenizer/literals.h"

#include <algorithm>

namespace jackscrew {

namespace {

uint16_t bucket_key(std::string_view text) {
  const auto first = static_cast<uint8_t>(text[0]);
  const auto second = static_cast<uint8_t>(text[1]);
  return static_cast<uint16_t>((first << 8) | second);
}

}  // namespace

Literals::Literals(std::vector<Literal> literals) : literals_(std::move(literals)) {
  std::stable_sort(literals_.begin(), literals_.end(), [](const Literal& a, const Literal& b) {
    return a.text.size() > b.text.size();
  });
  for (size_t i = 0; i < literals_.size(); ++i) {
    const std::string& text = literals_[i].text;
    begins_[static_cast<uint8_t>(text[0])] = true;
    if (text.size() >= 2) buckets_[bucket_key(text)].push_back(i);
  }
}

const Literal* Literals::at(std::string_view text, size_t position, bool parse_special) const {
  const std::string_view rest = text.substr(position);
  if (!begins_[static_cast<uint8_t>(rest[0])]) return nullptr;
  const auto fits = [&](const Literal& literal) {
    return (parse_special || !literal.special) && rest.starts_with(literal.text);
  };
  if (rest.size() >= 2) {
    if (const auto bucket = buckets_.find(bucket_key(rest)); bucket != buckets_.end()) {
      for (const size_t i : bucket->second) {
        if (fits(literals_[i])) return &literals_[i];
      }
    }
  }
  // One-byte tokens are the shortest, so they come last.
  for (size_t i = literals_.size(); i > 0 && literals_[i - 1].text.size() == 1; --i) {
    if (fits(literals_[i - 1])) return &literals_[i - 1];
  }
  return nullptr;
}

Literals::Place Literals::next(std::string_view text) const {
  for (size_t i = 0; (i = candidate(text, i)) < text.size(); ++i) {
    if (const Literal* literal = at(text, i, true)) return {i, literal};
  }
  return {text.size(), nullptr};
}

const Literal* Literals::find(std::string_view text) const {
  const auto found = std::find_if(literals_.begin(), literals_.end(),
                                  [&](const Literal& literal) { return literal.text == text; });
  return found == literals_.end() ? nullptr : &*found;
}

}  // namespace jackscrew
