#include "data/token_store.h"

#include <unistd.h>

#include <array>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "base/map_guard.h"
#include "data/example_list.h"

namespace jackscrew {

namespace {

constexpr uint32_t kTarget = 0x80000000u;
constexpr std::array<char, 8> kMagic = {'J', 'S', 'T', 'O', 'K', 'E', 'N', '2'};

struct Footer {
  uint64_t words = 0;
  uint64_t examples = 0;
  uint64_t trailer_bytes = 0;
  uint64_t crc32c = 0;  // of all before the footer
  std::array<char, 8> magic = kMagic;
};

template <typename T>
std::string_view bytes_of(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

// The name under which a file is written until it is whole.
std::string unfinished(const fs::path& path) {
  return path.filename().string() + kTemporarySuffix;
}

// The end of a file of tokens; nullopt where the file is none.
std::optional<Footer> footer_of(std::string_view all) {
  Footer footer;
  if (all.size() < sizeof footer) return std::nullopt;
  std::memcpy(&footer, all.data() + all.size() - sizeof footer, sizeof footer);
  return footer.magic == kMagic ? std::optional(footer) : std::nullopt;
}

std::string_view text_of(const MappedFile& file) {
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Whether a file's bytes are those that were written. Throws Error(data) where it was cut short.
bool is_unchanged(const MappedFile& file) {
  const std::string_view all = text_of(file);
  const std::optional<Footer> footer = footer_of(all);
  const bool unchanged =
      footer && footer->crc32c == crc32c(all.substr(0, all.size() - sizeof *footer));
  check_map(file.bytes().data(), ErrorKind::data);
  return unchanged;
}

// Entries are aligned to 8 bytes and follow words of 4.
uint64_t padding(uint64_t words) {
  return words % 2 * sizeof(uint32_t);
}

}  // namespace

int64_t TokenStore::length(int64_t example) const {
  const uint64_t begin = example == 0 ? 0 : entry(example - 1).end;
  const uint64_t end = entry(example).end;
  check_pages(file_.bytes().data(), ErrorKind::data);
  if (end <= begin) check_map(file_.bytes().data(), ErrorKind::data);  // zeros behind a new end
  return static_cast<int64_t>(end - begin);
}

Example TokenStore::example(int64_t example) const {
  const auto count = static_cast<size_t>(length(example));
  const uint64_t end = entry(example).end;
  check_map(file_.bytes().data(), ErrorKind::data);
  const std::span<const uint32_t> words = words_.subspan(end - count, count);
  Example out;
  out.ids.reserve(count);
  out.train.reserve(count);
  for (const uint32_t word : words) {
    const uint32_t id = word & ~kTarget;
    if (id >= vocab_size_) {
      throw Error(ErrorKind::data, fmt::format("{} is damaged", file_.path().string()),
                  "remove it: it is written again from the data");
    }
    out.ids.push_back(static_cast<int32_t>(id));
    out.train.push_back(static_cast<uint8_t>(word >> 31));
  }
  check_map(file_.bytes().data(), ErrorKind::data);
  return out;
}

bool TokenStore::is_sound() const {
  uint64_t before = 0;
  for (const Entry& entry : entries_) {
    if (entry.end <= before || entry.end > words_.size()) return false;
    before = entry.end;
  }
  return before == words_.size();
}

TokenWriter::TokenWriter(int64_t vocab_size, const fs::path& file, bool kept)
    : store_(new TokenStore), path_(file), kept_(kept) {
  store_->vocab_size_ = vocab_size;
  if (path_.empty()) return;
  if (!kept_) {
    file_ = std::make_unique<FileWriter>(path_, WriteMode::nameless);
    return;
  }
  const fs::path directory = path_.has_parent_path() ? path_.parent_path() : ".";
  directory_ = DirectoryHandle(directory);
  file_ = std::make_unique<FileWriter>(directory / unfinished(path_));
}

TokenWriter::~TokenWriter() {
  if (file_ == nullptr || !kept_) return;
  file_.reset();
  ::unlinkat(directory_.descriptor(), unfinished(path_).c_str(), 0);
}

void TokenWriter::write(std::string_view bytes) {
  file_->write(bytes);
  crc_.add(bytes);
}

void TokenWriter::add(const Example& example, int64_t trained_bytes) {
  packed_.clear();
  for (size_t i = 0; i < example.ids.size(); ++i) {
    const int32_t id = example.ids[i];
    if (id < 0 || id >= store_->vocab_size_) {
      fail(ErrorKind::data, "token id {} is outside the vocabulary of {}", id, store_->vocab_size_);
    }
    packed_.push_back(static_cast<uint32_t>(id) | (example.train[i] != 0 ? kTarget : 0u));
  }
  const std::string_view bytes = bytes_of(std::span<const uint32_t>(packed_));
  words_ += packed_.size();
  if (file_ != nullptr) {
    write(bytes);
  } else {
    append_within_limit(store_->own_words_, std::span<const uint32_t>(packed_), "tokens");
  }
  const TokenStore::Entry entry{words_, narrow<uint32_t>(example.target_count()),
                                narrow<uint32_t>(trained_bytes)};
  append_within_limit(store_->own_entries_, entry, kExamples);
}

std::shared_ptr<const TokenStore> TokenWriter::finish(const std::string& trailer) {
  TokenStore& store = *store_;
  if (file_ == nullptr) {
    store.words_ = store.own_words_;
    store.entries_ = store.own_entries_;
    return std::shared_ptr<const TokenStore>(std::move(store_));
  }
  write(std::string(padding(words_), '\0'));
  write(bytes_of(std::span<const TokenStore::Entry>(store.own_entries_)));
  write(trailer);
  const Footer footer{words_, store.own_entries_.size(), trailer.size(), crc_.value()};
  file_->write(&footer, sizeof footer);
  std::optional<TokenFile> written;
  if (kept_) {
    file_->close();
    const std::string name = path_.filename().string();
    rename_file_in(directory_.descriptor(), unfinished(path_), name, directory_.shown());
    written = TokenFile::read(MappedFile(directory_.shown() / name), store.vocab_size_);
  } else {
    written = TokenFile::read(file_->close_mapped(), store.vocab_size_);
  }
  if (!written) fail(ErrorKind::generic, "{} is not what was written to it", path_.string());
  return written->store;
}

bool is_token_file(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  if (path.string().ends_with(kTemporarySuffix)) return true;
  const MappedFile file(path);
  const bool is_one = footer_of(text_of(file)).has_value();
  check_map(file.bytes().data(), ErrorKind::data);
  return is_one;
}

std::optional<TokenFile> TokenFile::open(const fs::path& path, int64_t vocab_size) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  MappedFile file(path);
  if (!is_unchanged(file)) return std::nullopt;
  return read(std::move(file), vocab_size);
}

std::optional<TokenFile> TokenFile::read(MappedFile file, int64_t vocab_size) {
  std::unique_ptr<TokenStore> store(new TokenStore);
  store->file_ = std::move(file);
  store->vocab_size_ = vocab_size;
  const std::string_view all = text_of(store->file_);
  const std::optional<Footer> end = footer_of(all);
  if (!end) return std::nullopt;
  const Footer& footer = *end;
  const uint64_t limit = all.size();  // limits each count, so that the sums below cannot overflow
  if (footer.words > limit || footer.examples > limit || footer.trailer_bytes > limit) {
    return std::nullopt;
  }
  const uint64_t entries_at = footer.words * sizeof(uint32_t) + padding(footer.words);
  const uint64_t trailer_at = entries_at + footer.examples * sizeof(TokenStore::Entry);
  if (trailer_at + footer.trailer_bytes + sizeof footer != all.size()) return std::nullopt;
  const auto array = [&]<typename T>(uint64_t offset, uint64_t count, std::span<const T>& out) {
    out = {reinterpret_cast<const T*>(all.data() + offset), count};
  };
  array(0, footer.words, store->words_);
  array(entries_at, footer.examples, store->entries_);
  const bool sound = store->is_sound();
  std::string trailer(all.substr(trailer_at, footer.trailer_bytes));
  check_map(store->file_.bytes().data(), ErrorKind::data);
  if (!sound) return std::nullopt;
  return TokenFile{std::move(store), std::move(trailer)};
}

}  // namespace jackscrew
