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
#include "text/chat_template.h"

namespace jackscrew {

// A conversation, from `messages`, `conversations` or `instruction` + `output`.
struct ConversationRecord {
  std::vector<Message> messages;
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

// A whole .txt file.
struct DocumentRecord {
  std::string text;
};

using Record = std::variant<ConversationRecord, CompletionRecord, TextRecord, DocumentRecord>;

// Which of a directory's files are wanted.
enum class DataPart { train, valid, test };

// The data files (.jsonl .json .csv .txt) at `path`: the file itself, whatever the part, or a
// directory's files in order of name. In a directory, names that begin with train / valid,
// validation, eval or dev / test choose the part; where no name does, every file is of part train.
// Throws Error(data) when there is nothing of the part train or `path` is missing; other parts may
// be empty.
std::vector<std::filesystem::path> data_files(const std::filesystem::path& path,
                                              DataPart part = DataPart::train);

// Calls `use(record, place)` for every record of one file; `place` is "file:line" or "file, record
// N". `progress` is told of the file's bytes, a record's when it has been used; those of a .txt
// file, which is one record, are for the user to tell of. Throws Error(data) naming the place and
// what was expected.
void read_records(const std::filesystem::path& file,
                  const std::function<void(const Record&, const std::string&)>& use,
                  const ProgressCallback& progress = {});

// One record from the text of a JSON object; `place` is for messages. Throws Error(data).
Record parse_record(std::string_view json, const std::string& place);

}  // namespace jackscrew
