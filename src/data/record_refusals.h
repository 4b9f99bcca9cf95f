// Refuses records that would be trained on otherwise than they are meant. All of these throw
// Error(data) naming `place`.
#pragma once

#include <string>
#include <vector>

#include "data/json_tree.h"
#include "data/record_fields.h"
#include "data/record_keys.h"
#include "data/records.h"

namespace jackscrew {

// As a hint, for what has other things in it.
inline constexpr const char* kOnlyText = "only text is trained on";

// Refuses pairs of preferred and rejected answers, which DPO and similar methods need.
[[noreturn]] void refuse_preferences(const RecordJson& record, const std::string& place);

// Refuses the messages at `key`, which the user named, where none is a question and a prompt beside
// them is not read, as in TRL's preference data: the answers would be learned without what they
// answer.
void refuse_answers_alone(const RecordJson& record, const std::string& key,
                          const std::vector<Message>& messages, const KeysRead& read,
                          const std::string& place);

// Refuses a record with something at a key that the user named and its kind does not read.
void refuse_unread_names(const RecordJson& record, const RecordFields& fields, const KeysRead& read,
                         const std::string& place);

// Where answers are marked as good or bad: TRL's key and LLaMA-Factory's.
inline constexpr const char* kMarks[] = {"label", "kto_tag"};

// Refuses answers with such a mark, which KTO needs: the bad ones would be learned as well. A label
// of another type is a class, and nothing that is read; one that the user names is the answer.
void refuse_marked(const RecordJson& record, const RecordFields& fields, const std::string& place);

// Refuses answers about what is not read, as LLaVA and LLaMA-Factory have them.
void refuse_media(const RecordJson& record, const KeysRead& read, const std::string& place);

// Refuses a question without its answer beside a prompt with its completion: which is meant?
void refuse_two_kinds(const RecordJson& record, const RecordFields& fields,
                      const std::string& place);

}  // namespace jackscrew
