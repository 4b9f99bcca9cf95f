// Reads training files as records, before any tokenizer is involved.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/progress_callback.h"
#include "data/record_fields.h"
#include "text/chat/chat_template.h"

namespace jackscrew {

// A conversation, from `messages`, `conversations` or `instruction` + `output`. Tool-call arguments
// that are JSON in a string, as OpenAI writes them, are parsed, since templates expect that; so is
// ShareGPT's `function_call`.
struct ConversationRecord {
  std::vector<Message> messages;
  jinja::Value tools = jinja::None{};  // a list, or none
  jinja::Variables variables = {};     // what else its template sees: `chat_template_kwargs`
};

// `prompt` + `completion`: a user's and an assistant's message where the model has a chat format,
// otherwise one text, joined as they are.
struct CompletionRecord {
  std::string prompt, completion;
  jinja::Value tools = jinja::None{};  // none, or an empty list, which is one to a template
};

// `text`: trained throughout, with EOS at the end. Special tokens spelled out in it are special
// tokens.
struct TextRecord {
  std::string text;
};

// A .txt file, or one of its consecutive parts if it is long.
struct DocumentRecord {
  std::string_view text;  // of the file; valid as long as the FoundRecord that it came from
  bool begins = true;     // the first part
  bool ends = true;       // the last
};

using Record = std::variant<ConversationRecord, CompletionRecord, TextRecord, DocumentRecord>;

// How many records have something, by what is told of it.
using RecordCounts = std::map<std::string, int64_t>;

// A .txt file has no keys, and counts for nothing.
struct ParsedRecord {
  Record record;
  // The keys that the user named, by what was set: "field_input=context"; 1 for what it has, 0 for
  // what it lacks.
  RecordCounts named = {};
  RecordCounts unread = {};  // see unread_texts()
};

// Larger records are never intended: tokens of a text in one line, or a file that is not what its
// name says. Parsed as JSON, one takes several times its bytes, on every thread. They are refused
// before that.
inline constexpr size_t kMostOfRecord = size_t{64} << 20;

// A record that was found in a file and is still to be parsed: on any thread, at any time.
struct FoundRecord {
  std::string place;  // "file:line" or "file, record N"
  size_t bytes;       // of its text
  bool ends;          // false: the next one found continues the same document
  bool is_document;   // its text is used where it lies in the file
  // Throws Error(data) naming the place and what was expected.
  std::function<ParsedRecord(const RecordFields&)> parse;
};

// Returns false if no more are wanted.
using FoundCallback = std::function<bool(FoundRecord)>;

// Which parts of a document are found.
enum class DocumentParts { all, first };

// Finds the records of files, in order, until there are `max_records` (0: all); a document counts
// once, whatever its parts. A file need not fit in memory. `progress` is told the bytes of files,
// those of a record once it has been used. Throws Error(data) for a file whose records cannot be
// told apart; what is wrong with one of them, its parse() throws.
void find_records(std::span<const std::filesystem::path> files, int64_t max_records,
                  const FoundCallback& use, const ProgressCallback& progress = {},
                  DocumentParts parts = DocumentParts::all);

// Throws Error(data) for `data`, whose files were read to their end and hold no record. The hint
// says what the first of them holds instead.
[[noreturn]] void fail_without_records(const std::string& data,
                                       std::span<const std::filesystem::path> files);

// The length in bytes of the first part, at most `limit` >= 4, of a text that is read in parts. It
// ends after a line whose end has no space beside it and no slash behind it, where every
// pre-tokenizer in use cuts too; or else after a line with spaces before its end, where most do; or
// else before a space, or else at the end of a character.
size_t first_part(std::string_view text, size_t limit);

// One record from the text of a JSON object; `place` is for messages. Throws Error(data).
Record parse_record(std::string_view json, const std::string& place,
                    const RecordFields& fields = {});

}  // namespace jackscrew
