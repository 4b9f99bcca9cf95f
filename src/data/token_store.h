// Stores the tokens of examples, one example after another: in memory, or in a mapped file, so that
// they need not fit in memory.
//
// The file: words and entries (see TokenStore), a trailer of text, and a footer with the number of
// each and a checksum of them all. All numbers are little-endian.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/crc32c.h"
#include "base/directory_handle.h"
#include "base/file.h"
#include "data/example.h"

namespace jackscrew {

// Immutable and thread-safe.
class TokenStore {
 public:
  int64_t size() const { return std::ssize(entries_); }
  // For an example: its tokens, its targets, and the bytes that the targets stand for.
  int64_t length(int64_t example) const;
  int64_t targets(int64_t example) const { return entry(example).targets; }
  int64_t trained_bytes(int64_t example) const { return entry(example).trained_bytes; }
  // Throws Error(data) where the file holds values that TokenWriter never writes.
  Example example(int64_t example) const;

 private:
  friend class TokenWriter;
  friend struct TokenFile;
  TokenStore() = default;
  struct Entry {
    uint64_t end = 0;  // words up to the example's end
    uint32_t targets = 0;
    uint32_t trained_bytes = 0;
  };
  const Entry& entry(int64_t example) const { return entries_[static_cast<size_t>(example)]; }
  // Whether every example lies within the words.
  bool is_sound() const;

  // Each word is an id, with the highest bit set if it is a target.
  std::span<const uint32_t> words_;  // [tokens]
  std::span<const Entry> entries_;   // [examples]
  int64_t vocab_size_ = 0;
  MappedFile file_;  // or, where there is none:
  std::vector<uint32_t> own_words_;
  std::vector<Entry> own_entries_;
};

// Takes examples in order, each of at least one token.
class TokenWriter {
 public:
  // With a `file`, the words are written there as they come, and stay in its directory where that
  // is moved meanwhile; unless it is `kept`, to a file beside it that has no name and goes with the
  // store. Throws Error(generic) where the disk refuses.
  explicit TokenWriter(int64_t vocab_size, const fs::path& file = {}, bool kept = true);
  ~TokenWriter();

  // Throws Error(data) for an id outside the vocabulary.
  void add(const Example& example, int64_t trained_bytes);
  // `trailer` is stored in the file. Throws Error(generic) where the disk refuses.
  std::shared_ptr<const TokenStore> finish(const std::string& trailer);

 private:
  void write(std::string_view bytes);

  std::unique_ptr<TokenStore> store_;
  fs::path path_;
  bool kept_;
  DirectoryHandle directory_;         // of a file that is kept
  std::unique_ptr<FileWriter> file_;  // null: in memory
  uint64_t words_ = 0;
  Crc32c crc_;                    // of what is in the file
  std::vector<uint32_t> packed_;  // of the example being added
};

// An open file of tokens.
struct TokenFile {
  std::shared_ptr<const TokenStore> store;
  std::string trailer;

  // nullopt where there is no such file, or it is incomplete or was changed since.
  static std::optional<TokenFile> open(const fs::path& path, int64_t vocab_size);
  // nullopt where the file is incomplete. Changed tokens are not noticed: for files just written.
  static std::optional<TokenFile> read(MappedFile file, int64_t vocab_size);
};

// Whether a file is what a TokenWriter makes: whole, or under its temporary name (base/file.h).
bool is_token_file(const fs::path& path);

}  // namespace jackscrew
