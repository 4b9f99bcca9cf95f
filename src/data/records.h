// Training files as records, before any tokenizer is involved.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/progress_callback.h"
#include "data/record_fields.h"
#include "text/chat/chat_template.h"

namespace jackscrew {

// A conversation, from `messages`, `conversations` or `instruction` + `output`. Arguments of tool
// calls that are JSON in a text, as OpenAI writes them, become what the text says: templates expect
// that. So does a `function_call` of ShareGPT.
struct ConversationRecord {
  std::vector<Message> messages;
  jinja::Value tools = jinja::None{};  // a list, or none
};

// `prompt` + `completion`: a user's and an assistant's message where the model has a chat format,
// otherwise one text, the two joined as they are.
struct CompletionRecord {
  std::string prompt, completion;
};

// `text`: trained throughout, ended by EOS. Special tokens spelled out in it are special tokens.
struct TextRecord {
  std::string text;
};

// A .txt file, in parts where it is long. Together its parts are the file.
struct DocumentRecord {
  std::string_view text;  // of the file, valid as long as the FoundRecord that it came from
  bool begins = true;     // the first part
  bool ends = true;       // the last
};

using Record = std::variant<ConversationRecord, CompletionRecord, TextRecord, DocumentRecord>;

// A record that was found in a file and is still to be parsed: any thread may do that, at any time.
struct FoundRecord {
  std::string place;  // "file:line" or "file, record N"
  size_t bytes;       // of its text
  bool ends;          // false: the next one goes on with the same document
  // Throws Error(data) naming the place and what was expected.
  std::function<Record(const RecordFields&)> parse;
};

// False: no more are wanted.
using FoundCallback = std::function<bool(FoundRecord)>;
using RecordCallback = std::function<bool(const Record&, const std::string& place)>;

// Finds the records of files, in order, until there are `max_records` (0: all); a document counts
// once, whatever its parts. A file need not fit into memory. `progress` is told of the files'
// bytes, a record's when it has been used. Throws Error(data) as parsing does.
void find_records(std::span<const std::filesystem::path> files, int64_t max_records,
                  const FoundCallback& use, const ProgressCallback& progress = {});

// Finds and parses them.
void read_records(std::span<const std::filesystem::path> files, int64_t max_records,
                  const RecordCallback& use, const ProgressCallback& progress = {},
                  const RecordFields& fields = {});

// The bytes of the first part, at most `limit` >= 4, of a text that is read in parts: it ends with
// a line, where every pre-tokenizer of the field cuts too, or else before a space or with a
// character.
size_t first_part(std::string_view text, size_t limit);

// One record from the text of a JSON object; `place` is for messages. Throws Error(data).
Record parse_record(std::string_view json, const std::string& place,
                    const RecordFields& fields = {});

}  // namespace jackscrew
