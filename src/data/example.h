// Examples: token ids, and which of them a model is trained to predict.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/records.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace jackscrew {

// A count in a struct `Of` of counts, and its name in files.
template <class Of>
struct NamedCount {
  const char* name;
  int64_t Of::*field;
};

// Counts of irregularities in records.
struct RecordNotes {
  int64_t untrainable = 0;           // answers to be trained that cannot be, see RenderedChat
  int64_t thoughtless = 0;           // those of them that lack thoughts, see RenderedChat
  int64_t after_part_of_prompt = 0;  // trained answers, see RenderedChat
  int64_t unended = 0;               // trained answers without a token that ends them
  int64_t dropped_bos = 0;           // conversations that began with BOS twice
  int64_t unused_tools = 0;        // conversations with tools that the chat template never mentions
  int64_t unused_thoughts = 0;     // the same with what a model thought before an answer
  int64_t empty = 0;               // records with an empty text or answer to be trained
  int64_t not_utf8 = 0;            // bytes of .txt files that belong to no character
  int64_t without_token = 0;       // those of them that the tokenizer has no token for
  int64_t zero_bytes = 0;          // of texts: in UTF-8, NUL, which no text has
  int64_t json_lines = 0;          // .txt files that begin with a line of JSON Lines
  RecordCounts named_fields = {};  // see ParsedRecord
  RecordCounts unread = {};        // the same

  RecordNotes& operator+=(const RecordNotes& other);
  bool operator==(const RecordNotes&) const = default;
};

// Those that are single numbers.
inline constexpr NamedCount<RecordNotes> kNoteCounts[] = {
    {"untrainable", &RecordNotes::untrainable},
    {"thoughtless", &RecordNotes::thoughtless},
    {"after_part_of_prompt", &RecordNotes::after_part_of_prompt},
    {"unended", &RecordNotes::unended},
    {"dropped_bos", &RecordNotes::dropped_bos},
    {"unused_tools", &RecordNotes::unused_tools},
    {"unused_thoughts", &RecordNotes::unused_thoughts},
    {"empty", &RecordNotes::empty},
    {"not_utf8", &RecordNotes::not_utf8},
    {"without_token", &RecordNotes::without_token},
    {"zero_bytes", &RecordNotes::zero_bytes},
    {"json_lines", &RecordNotes::json_lines},
};

struct Example {
  std::vector<int32_t> ids;
  std::vector<uint8_t> train;  // one for each id; 1: this token is a target
  RecordNotes notes = {};
  // So many first ids are of a text: special tokens among them, behind the first id, are spelled
  // out in it. Not stored with the ids: the bytes that targets stand for are counted before.
  int64_t spelled_ids = 0;

  // The number of targets. The first token never counts, since nothing precedes it.
  int64_t target_count() const;
};

struct ExampleOptions {
  bool train_on_inputs = false;  // every token is trained, the user's too
  ChatFormat format;
  RecordFields fields = {};  // used by encode_records()
};

// Whether a text, or an answer to be trained, has nothing but space. Of a document in several
// parts, none has.
bool has_empty_text(const Record& record);

// The example of one whole record; `place` is for messages. For a DocumentRecord, the example of
// the part that it holds, with BOS before the first part where the tokenizer adds it by default.
// Throws what render_chat() throws, with Error(data) for a record that does not fit the template.
Example encode_record(const Tokenizer& tokenizer, const ExampleOptions& options,
                      const Record& record, const std::string& place);

}  // namespace jackscrew
